"""Servers to measure, ours and those of others, and their clients."""
