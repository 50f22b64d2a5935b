"""The ``layerstream`` command: one command a file; errors are one line on stderr (process.py)."""
