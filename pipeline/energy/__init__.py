"""Joules: what the kernel knows of power, summed between two moments."""
