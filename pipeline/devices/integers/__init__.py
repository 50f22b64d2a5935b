"""Quantised layers by the native library: the bits of ONNX Runtime, in little memory."""
