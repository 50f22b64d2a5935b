"""Fuzz the reader of infer requests: ``python -m tests.fuzz.infer [seconds] [first] [--minutes N]``.

Each example is a request, most often damaged, cut into chunks at random. The reader and the plain rules of
tests/server/codec/infer_oracle.py refuse it or make the same arrays of it. Anything else ends the
run with the example's number.
"""

import random
import sys

from server.codec import Request, RequestReader
from server.errors import InvalidRequestError, TooLargeError
from tests.fuzz.pack import chosen_run, run_examples
from tests.server.codec.infer_cases import OUTPUTS, chunks, draw_body, draw_ports
from tests.server.codec.infer_oracle import Meaning, Refused, meaning

_LONGEST_MESSAGE = 400


def run(number: int) -> bool:
    """Read one request in both ways; return whether it was accepted."""
    return compare(random.Random(number))


def compare(rng: random.Random) -> bool:
    """Draw a request, read it in both ways; return whether it was accepted."""
    ports = draw_ports(rng)
    body = draw_body(rng, ports)
    try:
        expected = meaning(body, ports, OUTPUTS)
    except Refused:
        expected = None
    reader = RequestReader(ports, OUTPUTS)
    try:
        for chunk in chunks(rng, body):
            reader.feed(chunk)
        found = reader.finish()
    except (InvalidRequestError, TooLargeError) as exc:
        check_message(str(exc))
        if expected is not None:
            raise AssertionError(f"refused with {str(exc)!r}: {body!r}") from exc
        return False
    if expected is None:
        raise AssertionError(f"accepted: {body!r}")
    check_same(found, expected)
    return True


def check_message(message: str) -> None:
    assert message.isprintable(), message
    assert len(message) <= _LONGEST_MESSAGE, message


def check_same(found: Request, expected: Meaning) -> None:
    assert list(found.inputs) == list(expected.inputs)
    for name, array in found.inputs.items():
        right = expected.inputs[name]
        assert (array.dtype, array.shape) == (right.dtype, right.shape)
        assert array.flags.c_contiguous
        if array.dtype == object:
            assert array.tolist() == right.tolist()
        else:
            assert array.tobytes() == right.tobytes(), (array, right)  # -0.0 is not 0.0
    wanted = None if found.outputs is None else [output.name for output in found.outputs]
    assert (wanted, found.id) == (expected.outputs, expected.id)
    assert found.timeout_seconds == expected.timeout_seconds


def main(arguments: list[str]) -> int:
    seconds, first = chosen_run(arguments)
    return run_examples(run, seconds, first)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
