"""ONNX files and their graphs: read and trusted in nothing, understood, written."""
