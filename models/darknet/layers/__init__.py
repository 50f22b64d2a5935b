"""Sections to layers with shapes and parameters; not a single weight."""
