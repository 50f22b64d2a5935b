"""The CUDA device: CuPy owns memory, streams and events; the kernels are ours (kernels/)."""
