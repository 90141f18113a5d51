"""Sources: expressions, ONNX files and PyTorch modules, each read into a Graph."""
