"""Frames through partitions that compute at once, beside the whole network."""
