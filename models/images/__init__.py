"""Photographs as networks take them: where they lie, resized, as tensors."""
