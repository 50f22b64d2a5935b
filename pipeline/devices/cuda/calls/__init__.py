"""What the kernels are called with: pure functions from shapes and pointers to launches as data."""
