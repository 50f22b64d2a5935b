"""Darknet networks: cfg and weights in, ONNX out."""
