"""Tensors as JSON: read as the text comes, written in pieces.

Everything but the values is kept as text (reader.py) until it is parsed; the values of "data" become arrays
piece by piece (values.py, and arrays.py for numbers), and their text is forgotten.
"""
