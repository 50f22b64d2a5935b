"""Where kernels run: the interface in base.py, one device a file."""
