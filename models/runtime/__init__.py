"""ONNX Runtime as compiler and CPU device use it: sessions, the heap they take, when its threads sleep."""
