"""The decoder as an ONNX graph, and the folder around it."""
