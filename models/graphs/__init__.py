"""ONNX files and their graphs: read as untrusted data, understood, written."""
