"""Fuzz the reader of pieces: ``python -m tests.fuzz.wire [seconds] [first] [--minutes N]``.

Each example damages a piece. Its fields, put together, are the piece again; ``join_graphs`` refuses it with
its errors, or takes it. Anything else ends the run with its number.
"""

import random
import sys

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from models.runtime.joined_graphs import JoinError, can_join, join_graphs
from models.runtime.wire import WireError, fields
from tests.fuzz.pack import change_bytes, chosen_run, run_examples


def sound_piece() -> bytes:
    """Return a piece with constants, attributes and two nodes."""
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xy"]
    half = numpy_helper.from_array(np.array([0.5], np.float32), "half")
    nodes = [
        helper.make_node("HardSigmoid", ["x"], ["s"], alpha=0.25, beta=0.5),
        helper.make_node("Mul", ["s", "half"], ["y"], name="second"),
    ]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], [half])
    return bytes(helper.make_model(graph, ir_version=9).SerializeToString())


_SOUND = sound_piece()


def run(number: int) -> bool:
    """Damage and read; return whether it was joined with itself."""
    data = change_bytes(_SOUND, random.Random(number))
    try:
        if b"".join(field.whole for field in fields(data)) != data:
            raise AssertionError("its fields are other bytes")
    except WireError:
        pass
    return can_join(data) and _joins(data)


def _joins(data: bytes) -> bool:
    """Join a piece with itself: nothing but its versions may be in the way."""
    try:
        joined = join_graphs([data, data])
    except (JoinError, WireError):
        return False
    if b"".join(field.whole for field in fields(joined)) != joined:
        raise AssertionError("what was joined is no message")
    return True


def main(arguments: list[str]) -> int:
    seconds, first = chosen_run(arguments)
    return run_examples(run, seconds, first)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
