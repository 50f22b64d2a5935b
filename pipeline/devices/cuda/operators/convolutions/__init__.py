"""Launches that compute convolutions: algorithms, and the kernels of each."""
