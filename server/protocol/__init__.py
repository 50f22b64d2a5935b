"""HTTP: one group of endpoints a file; what they share in serving.py, errors in errors.py."""
