"""One ONNX model on one device: its session, its KV cache and the tokens in the cache."""
