"""Operators on elements in one pass: a small native library, and where there is none ONNX Runtime."""
