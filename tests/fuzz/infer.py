"""Fuzz the reader of infer requests: ``python -m tests.fuzz.infer [seconds] [first] [--minutes N]``.

Each example is a body of JSON, of JSON and raw tensors, or of one raw tensor, and what a header says of it;
most often damaged, sometimes compressed, cut into chunks at random. The decoder and the plain rules of
tests/server/codec/infer_oracle.py refuse it or make the same arrays of it. Anything else ends the
run with the example's number.
"""

import gzip
import random
import sys
import zlib
from collections.abc import Sequence

from models.packs.records.ports import Port
from server.codec.compression import BodyOpener
from server.codec.framing import Coding, Framing
from server.codec.infer_bodies import BodyDecoder, decode_at_once
from server.codec.messages import ModelRequest, Signature
from server.errors import InvalidRequestError, TooLargeError
from tests.fuzz.pack import chosen_run, run_examples
from tests.server.codec.infer_cases import OUTPUTS, chunks, draw_ports
from tests.server.codec.infer_oracle import Meaning, Refused, meaning
from tests.server.codec.mixed_cases import draw_sent

_LONGEST_MESSAGE = 400
_MOST_BYTES = 64 << 20
_CODINGS: tuple[Coding, ...] = ("identity",) * 6 + ("gzip", "deflate")


def run(number: int) -> bool:
    """Read one request in both ways; return whether it was accepted."""
    return compare(random.Random(number))


def compare(rng: random.Random) -> bool:
    """Draw a request, read it in both ways; return whether it was accepted."""
    ports = draw_ports(rng)
    body, json_bytes = draw_sent(rng, ports)
    coding = rng.choice(_CODINGS)
    try:
        expected = meaning(body, ports, OUTPUTS, json_bytes)
    except Refused:
        expected = None
    check_at_once(body, Framing(json_bytes), ports, expected)
    try:
        found = decoded(rng, body, Framing(json_bytes, coding), ports)
    except (InvalidRequestError, TooLargeError) as exc:
        check_message(str(exc))
        if expected is not None:
            raise AssertionError(f"refused with {str(exc)!r}: {json_bytes} {body!r}") from exc
        return False
    if expected is None:
        raise AssertionError(f"accepted: {json_bytes} {body!r}")
    check_same(found, expected)
    return True


def check_at_once(
    body: bytes, framing: Framing, ports: Sequence[Port], expected: Meaning | None
) -> None:
    """Check that ``body`` is parsed at once as the plain rules say, or left to the decoder."""
    found = decode_at_once(body, framing, Signature(ports, OUTPUTS))
    if found is not None:
        assert expected is not None, f"accepted at once: {framing.json_bytes} {body!r}"
        check_same(found, expected)


def decoded(
    rng: random.Random, body: bytes, framing: Framing, ports: Sequence[Port]
) -> ModelRequest:
    """Send ``body`` as ``framing`` says, in chunks; return what it is on the other side."""
    decoder = BodyDecoder(framing, Signature(ports, OUTPUTS))
    opened = BodyOpener(framing.coding, _MOST_BYTES)
    for chunk in chunks(rng, encoded(body, framing.coding)):
        for block in opened.blocks(chunk):
            decoder.feed(block)
    opened.finish()
    return decoder.finish()


def encoded(body: bytes, coding: Coding) -> bytes:
    """``body`` in ``coding``, by the standard library."""
    match coding:
        case "gzip":
            return gzip.compress(body)
        case "deflate":
            return zlib.compress(body)
        case "identity":
            return body


def check_message(message: str) -> None:
    assert message.isprintable(), message
    assert len(message) <= _LONGEST_MESSAGE, message


def check_same(found: ModelRequest, expected: Meaning) -> None:
    assert list(found.inputs) == list(expected.inputs)
    for name, array in found.inputs.items():
        right = expected.inputs[name]
        assert (array.dtype, array.shape) == (right.dtype, right.shape)
        assert array.flags.c_contiguous
        if array.dtype == object:
            assert array.tolist() == right.tolist()
        else:
            assert array.tobytes() == right.tobytes(), (array, right)  # -0.0 is not 0.0
    wanted = [(output.name, output.is_binary, output.n_classes) for output in found.wanted]
    assert (wanted, found.id) == (expected.outputs, expected.id)
    assert found.timeout_seconds == expected.timeout_seconds


def main(arguments: list[str]) -> int:
    seconds, first = chosen_run(arguments)
    return run_examples(run, seconds, first)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
