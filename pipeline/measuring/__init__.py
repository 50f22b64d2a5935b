"""Measuring a pack on this machine: reads, copies, kernels, and what they cost each other."""
