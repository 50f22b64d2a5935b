"""Infer requests and answers of the Open Inference Protocol, version 2; free of IO.

What headers say (framing.py) and the chunks of a body become named arrays, and named arrays the pieces of
an answer (infer_bodies.py). Between the two lie the plain records of messages.py, which know neither JSON
nor HTTP, and what a request may say, for JSON and gRPC; JSON is read and written in text/, raw tensors in
raw.py.
"""

from server.codec.framing import Coding, Framing, answer_coding
from server.codec.infer_bodies import Body, BodyDecoder, decode_at_once
from server.codec.messages import ModelAnswer, ModelRequest, Output, WantedOutput

__all__ = [
    "Body",
    "BodyDecoder",
    "Coding",
    "Framing",
    "ModelAnswer",
    "ModelRequest",
    "Output",
    "WantedOutput",
    "answer_coding",
    "decode_at_once",
]
