"""The model optimised: ONNX Runtime's work, and rewrites before and after it."""
