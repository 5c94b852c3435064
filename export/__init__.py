"""From a checkpoint to a quantized ONNX model folder."""
