"""ONNX Runtime as the compiler and the CPU device use it: its sessions, and the heap that they take."""
