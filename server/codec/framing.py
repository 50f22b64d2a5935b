"""What the headers of an infer request say of its body, and of the answer that is wanted.

The binary tensor data extension puts raw tensors behind the JSON of a body: the header
Inference-Header-Content-Length says where they begin. Bodies may be compressed as a whole.
"""

from collections.abc import Iterable
from typing import Literal, NamedTuple, Self, get_args

from server.errors import EncodedError, InvalidRequestError, shown

Coding = Literal["identity", "gzip", "deflate"]
CODINGS: tuple[Coding, ...] = get_args(Coding)
JSON_LENGTH = "inference-header-content-length"
_MOST_DIGITS = 18
_NAMES = {b"": "identity", b"x-gzip": "gzip", **{name.encode(): name for name in CODINGS}}

Headers = Iterable[tuple[bytes, bytes]]


class Framing(NamedTuple):
    """``json_bytes``: of the JSON before raw tensors, None where all is JSON; ``coding``: of the whole."""

    json_bytes: int | None = None
    coding: Coding = "identity"

    @classmethod
    def of(cls, headers: Headers) -> Self:
        """Return what ``headers``, whose names are in lower case, say.

        Raises:
            InvalidRequestError: a length that is none. EncodedError: a coding that is not read.
        """
        json_bytes: int | None = None
        coding: Coding = "identity"
        for name, value in headers:
            if name == b"inference-header-content-length":
                length = _length(value)
                if json_bytes not in (None, length):
                    raise InvalidRequestError("Inference-Header-Content-Length is given twice")
                json_bytes = length
            elif name == b"content-encoding":
                if coding != "identity":
                    raise EncodedError("the body is encoded twice: send it encoded once", CODINGS)
                coding = coding_of(value)
            elif name == b"transfer-encoding":
                _check_transfer(value)
        return cls(json_bytes, coding)


def coding_of(value: bytes, taken: tuple[Coding, ...] = CODINGS) -> Coding:
    """Return what a Content-Encoding names.

    Raises:
        EncodedError: it is none of those that are ``taken``.
    """
    name = _NAMES.get(value.strip().lower())
    for coding in taken:
        if coding == name:
            return coding
    encoding = shown(value.decode("latin-1"))
    raise EncodedError(f"the body is encoded as {encoding}; taken is {', '.join(taken)}", taken)


def _check_transfer(value: bytes) -> None:
    """Check that a body is sent as it is: in chunks, and no more."""
    if value.strip().lower() != b"chunked":
        sent = shown(value.decode("latin-1"))
        raise EncodedError(f"Transfer-Encoding is {sent}; taken is chunked alone", ("identity",))


def check_not_encoded(headers: Headers) -> None:
    """Check that a body is what it says, with no coding around it.

    Raises:
        EncodedError: it has one.
    """
    for name, value in headers:
        if name == b"content-encoding":
            coding_of(value, ("identity",))
        elif name == b"transfer-encoding":
            _check_transfer(value)


def answer_coding(headers: Headers) -> Coding:
    """Return how to encode an answer: compressed where Accept-Encoding names one coding alone.

    HTTP libraries send a list of all codings that they know, and tensors hardly shrink: compressing for
    every list would waste time. One coding alone is a wish, such as tritonclient's
    response_compression_algorithm.
    """
    listed = b""
    for name, value in headers:
        if name == b"accept-encoding":
            listed += b"," + value
    if not listed:
        return "identity"
    wished = {
        item.partition(b";")[0].strip().lower() for item in listed.split(b",") if _is_taken(item)
    }
    wished -= {b"identity", b""}
    coding = _NAMES.get(wished.pop()) if len(wished) == 1 else None
    return next((known for known in CODINGS if known == coding), "identity")


def _is_taken(item: bytes) -> bool:
    """Return whether an item of Accept-Encoding has no weight of zero."""
    _, _, weight = item.replace(b" ", b"").lower().partition(b";q=")
    return weight.strip(b"0.") != b"" or weight == b""


def _length(value: bytes) -> int:
    if not value.isdigit() or len(value) > _MOST_DIGITS:
        found = shown(value.decode("latin-1"))
        raise InvalidRequestError(
            f"Inference-Header-Content-Length: {found} is not a number of bytes"
        )
    return int(value)
