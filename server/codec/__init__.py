"""Infer requests and answers of the Open Inference Protocol, version 2, as JSON; free of IO.

A request is read as its chunks arrive (reader.py): everything but the values is kept as text
(skeleton.py) and becomes checked fields at the end (fields.py); the values of "data" become arrays
piece by piece (values.py, with layout.py for brackets, arrays.py for numbers), and their text is
forgotten. Short, ordinary requests are parsed at once (plain.py). An answer is written in pieces
(writer.py).
"""

from server.codec.fields import RequestedOutput
from server.codec.plain import read_plain
from server.codec.reader import Request, RequestReader
from server.codec.writer import write_response

__all__ = ["Request", "RequestReader", "RequestedOutput", "read_plain", "write_response"]
