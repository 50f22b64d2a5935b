"""Moving bytes: readers, buffers, the ring. It handles files and ranges of bytes; networks are above it."""
