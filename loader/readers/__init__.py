"""Readers of ranges of a file: of real files, and the shipped fakes, behind one interface."""
