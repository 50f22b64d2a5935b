"""Which parts of a network run on rows, for less and less memory."""
