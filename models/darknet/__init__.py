"""Darknet networks: cfg and weights in, ONNX out, and back."""
