"""Regions whose phases make boxes: what is made and kept, and where it lies."""
