"""Layers to nodes of ONNX."""
