"""Layers that ONNX Runtime has no blocked kernel for, said in convolutions that have one."""
