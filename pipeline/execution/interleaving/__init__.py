"""Sweeps that run at once: one computes, the others read."""
