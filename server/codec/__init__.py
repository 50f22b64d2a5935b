"""Infer requests and answers of the Open Inference Protocol, version 2; free of IO.

One seam: what headers say (framing.py) and the chunks of a body become named arrays (decoding.py), and
named arrays the pieces of an answer (encoding.py). Between the two lie the plain records of messages.py,
which know neither JSON nor HTTP. What a request may say stands in fields.py, for JSON and gRPC; JSON is
read and written in text/, raw tensors in raw/.
"""

from server.codec.decoding import BodyDecoder, decode_at_once
from server.codec.encoding import Body
from server.codec.framing import Coding, Framing, answer_coding
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
