"""ONNX files that clients send: received, compiled in a process of their own, put into the repository."""
