"""Where weights come from: GGUF files and safetensors folders behind one protocol."""
