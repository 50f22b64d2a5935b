"""Moving bytes: readers, buffers, the ring. Knows files and ranges of bytes, nothing of networks."""
