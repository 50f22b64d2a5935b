"""Deadlines, shared sweeps and interleaved models, measured beside how it was without."""
