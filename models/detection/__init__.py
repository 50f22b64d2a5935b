"""Detectors: the recipe of their outputs, decoding, suppression, boxes on the photograph."""
