"""Kernels that nothing separates, run as one launch."""
