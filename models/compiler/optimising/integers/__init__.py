"""Quantised networks of any exporter, made such that ONNX Runtime has fast kernels for them."""
