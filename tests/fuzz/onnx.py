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

from models.errors import OnnxError
from models.graphs.file import reference
from models.graphs.onnx_reader import read_onnx
from tests.fuzz.pack import change_bytes, chosen_run, run_examples
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
)


def attempt(path: Path) -> bool:
    """Read the model in ``path``; return whether it was accepted."""
    try:
        model = read_onnx(path)
    except OnnxError as exc:
        if not str(exc).isprintable() or str(path) not in str(exc):
            raise AssertionError(f"not one line that names the file: {str(exc)!r}") from exc
        return False
    weights = {tensor.name for tensor in model.graph.initializer}
    for value in model.graph.input:
        if value.name in weights:
            raise AssertionError(f"weight {value.name!r} is an input")
        if any(dim.dim_value < 1 for dim in value.type.tensor_type.shape.dim):
            raise AssertionError(f"input {value.name!r} has no static shape")
    for tensor in model.graph.initializer:
        held = reference(tensor)
        if held and held.offset + held.length > held.path.stat().st_size:
            raise AssertionError(f"weight {tensor.name!r} refers to bytes that are not there")
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
