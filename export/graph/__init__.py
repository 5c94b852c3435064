"""The decoder as an ONNX graph, and the model folder that holds it."""
