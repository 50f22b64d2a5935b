"""Partitions of one network at once: turns, what lies between them, and their cores."""
