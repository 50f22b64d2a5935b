"""Tensors as JSON: read as the text comes, written in pieces.

Everything but the values is kept as text (skeleton.py) until it is parsed; the values of "data" become
arrays piece by piece (values.py, with layout.py for brackets, arrays.py for numbers), and their text is
forgotten.
"""
