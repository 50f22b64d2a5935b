"""Tensors as raw bytes: the binary tensor data extension, little-endian, row-major, one behind the other.

Strings are their length in four bytes and their UTF-8.
"""

import sys

#: Of the length before a string.
LENGTH_BYTES = 4

if sys.byteorder != "little":
    raise ImportError("raw tensors are little-endian, this machine is not")
