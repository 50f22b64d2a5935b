"""Weights that are stored in fewer bytes: the same answers, and what expanding them takes."""
