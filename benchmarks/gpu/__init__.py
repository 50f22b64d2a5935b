"""Measurements on an NVIDIA GPU: kernels beside cuDNN, whole networks, pipelines, memory."""
