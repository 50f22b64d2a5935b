"""Launches that compute convolutions: algorithms, tiles, and the kernels of each."""
