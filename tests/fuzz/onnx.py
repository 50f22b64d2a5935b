"""Fuzz the ONNX reader: ``python -m tests.fuzz.onnx [seconds] [first example] [--minutes N]``.

Each example damages a model, as bytes or field by field, and reads it. The reader may refuse it with
OnnxError; what it accepts must keep the reader's invariant. Anything else ends the run with the
example's number.
"""

import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from onnx import ModelProto
from onnx.parser import parse_model

from models.errors import OnnxError
from models.graphs.inputs import MAX_DEFAULT_BYTES
from models.graphs.onnx_reader import read_graph
from models.graphs.ranges import range_of
from models.graphs.reader import graph_of
from models.graphs.traits import count_parameters, infinite_weights
from models.graphs.writer import model_of
from tests.fuzz.pack import change_bytes, chosen_run, run_examples
from tests.models.graphs.records import facts
from tests.models.nets import NETS, WEIGHT_BYTES, external, one_layer

_NUMBERS = (0, 1, 2, 3, 7, 16, 4711, (1 << 31) - 1)
_WIDE = (-1, -(1 << 63), (1 << 63) - 1, 1 << 40, 1 << 62)
_TEXTS = (
    "",
    "x",
    "w",
    "y",
    "../w.data",
    "/etc/hostname",
    "w.data",
    "loop",
    "a\nb\x1b[0m",
    "\0",
    "nan",
    "f",
    "twice",
    "k",
    "Cast",
    "Identity",
    "MatMulNBits",
)
_FUNCTIONS = """
    <ir_version: 9, opset_import: ["" : 17, "f" : 1]>
    g (float[4] x, bool c, seq(float[2]) s) => (float[4] y) {
        z = f.twice<k = 0.5, n = [1, 2]>(x, c)
        y = f.twice<k = -1.0>(z, c)
    }
    <opset_import: ["" : 17, "f" : 1], domain: "f">
    twice <k, n> (a, c) => (b) { p = f.once<k: float = @k>(a, c)
        b = f.once<k: float = @k>(p, c) }
    <opset_import: ["" : 17], domain: "f">
    once <k> (a, c) => (b) {
        w = Constant<value = float[4] {1, 2, 3, 4}>()
        q = Add(a, w)
        b = If (c) <
            then_branch = t () => (float[4] d) { d = LeakyRelu<alpha: float = @k>(q) },
            else_branch = e () => (float[4] e) { e = Neg(q) }>
    }
"""


def attempt(path: Path) -> bool:
    """Read the model in ``path``; return whether it was accepted."""
    try:
        graph = read_graph(path).graph
    except OnnxError as exc:
        if not str(exc).isprintable() or str(path) not in str(exc):
            raise AssertionError(f"not one line that names the file: {str(exc)!r}") from exc
        return False
    ports = {name: item.array for name, item in graph.dynamic.items()} | {**graph.values}
    for name in graph.inputs:
        port = ports[name]
        default = graph.constants.get(name)
        if default is not None and default.nbytes > MAX_DEFAULT_BYTES:
            raise AssertionError(f"weight {name!r} is an input")
        if default is None and port is not None and any(length < 1 for length in port.shape):
            raise AssertionError(f"input {name!r} has no static shape")
    for name, array in graph.constants.items():
        held = range_of(array)
        if held and held.offset + held.length > held.path.stat().st_size:
            raise AssertionError(f"weight {name!r} refers to bytes that are not there")
    count_parameters(graph)
    infinite_weights(graph)
    if facts(graph_of(model_of(graph))) != facts(graph):
        raise AssertionError("it is another graph when it was written and read")
    return True


def messages(message: Message) -> list[Message]:
    """Return ``message`` and all messages inside it."""
    found = [message]
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            for part in value if field.is_repeated else [value]:
                found += messages(part)
    return found


def value_for(field: FieldDescriptor, rng: random.Random) -> Any:
    """Return something for one value of ``field``."""
    if field.type == FieldDescriptor.TYPE_STRING:
        return rng.choice(_TEXTS)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return rng.randbytes(rng.choice((0, 1, 4, 128, 4096)))
    if field.cpp_type in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return rng.choice((0.0, -1.0, 1e30, float("nan"), float("inf")))
    if field.cpp_type == FieldDescriptor.CPPTYPE_INT64:
        return rng.choice((*_NUMBERS, *_WIDE))
    if field.type == FieldDescriptor.TYPE_ENUM:
        assert field.enum_type is not None
        return rng.choice([item.number for item in field.enum_type.values])
    return rng.choice(_NUMBERS)


def change_field(model: ModelProto, rng: random.Random) -> None:
    """Clear, set, repeat or remove one field anywhere in ``model``."""
    message: Any = rng.choice(messages(model))
    field = rng.choice(message.DESCRIPTOR.fields)
    is_message = field.type == FieldDescriptor.TYPE_MESSAGE
    action = rng.randrange(3)
    if action == 0:
        message.ClearField(field.name)
    elif field.is_repeated:
        values = getattr(message, field.name)
        if action == 1 and len(values):
            del values[rng.randrange(len(values))]
        elif is_message:
            values.add()
        else:
            values.append(value_for(field, rng))
    elif is_message:
        getattr(message, field.name).SetInParent()
    else:
        setattr(message, field.name, value_for(field, rng))


class OnnxFuzzer:
    """Damages models in ``folder``; example ``number`` is always the same."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "m.onnx"
        self._models = [NETS[name]() for name in ("concat", "two_by_two", "no_weights")]
        self._models += [one_layer(), external("w.data", offset="0", length=str(WEIGHT_BYTES))]
        self._models.append(parse_model(_FUNCTIONS))
        (folder / "w.data").write_bytes(bytes(WEIGHT_BYTES))
        (folder / "loop").symlink_to("loop")

    def run(self, number: int) -> bool:
        """Damage and read; return whether it was accepted."""
        rng = random.Random(number)
        model = ModelProto()
        model.CopyFrom(rng.choice(self._models))
        if rng.random() < 0.3:
            data = change_bytes(model.SerializeToString(), rng)
        else:
            for _ in range(rng.randint(1, 3)):
                change_field(model, rng)
            data = model.SerializeToString()
        self._path.write_bytes(data)
        return attempt(self._path)


def main(arguments: list[str]) -> int:
    seconds, first = chosen_run(arguments)
    with tempfile.TemporaryDirectory() as name:
        return run_examples(OnnxFuzzer(Path(name)).run, seconds, first)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
