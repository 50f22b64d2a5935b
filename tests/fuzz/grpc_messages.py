"""Messages that ask for inference over gRPC, drawn at random: sound, wrong in one thing, or damaged."""

import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from server.grpc.messages import inference_pb2 as messages
from tests.fuzz.http_infer import COPIES

_KINDS = {"x": ("FP32", (2, 2)), "b": ("BOOL", (3,)), "s": ("BYTES", (2,))}
#: Which field of typed contents has the values of an input.
FIELDS = {"x": "fp32_contents", "b": "bool_contents", "s": "bytes_contents"}
_TEXTS = ("", "a", "\0", "ä" * 50, "x" * 3000)


@dataclass(frozen=True)
class Sent:
    """A message; ``is_sound``: it is answered (None: unknown)."""

    data: bytes
    is_sound: bool | None


def draw(rng: random.Random) -> Sent:
    """A message to the model "copies"."""
    kind = rng.random()
    if kind < 0.05:
        return Sent(rng.randbytes(rng.choice((0, 1, 9, 300))), None)
    asked = _sound(rng)
    if kind < 0.4:
        return Sent(asked.SerializeToString(), True)
    if kind < 0.7:
        rng.choice(_WRONG)(rng, asked)
        return Sent(asked.SerializeToString(), False)
    data = bytearray(asked.SerializeToString())
    for _ in range(rng.choice((1, 1, 2, 8))):
        _damage(rng, data)
    return Sent(bytes(data), None)


def _sound(rng: random.Random) -> Any:
    asked = messages.ModelInferRequest(model_name="copies", id=rng.choice(_TEXTS))
    is_raw = rng.random() < 0.6
    for name in rng.sample(sorted(_KINDS), len(_KINDS)):
        datatype, shape = _KINDS[name]
        tensor = asked.inputs.add(name=name, datatype=datatype, shape=shape)
        values = _values(rng, name)
        if is_raw:
            asked.raw_input_contents.append(packed(name, values))
        else:
            getattr(tensor.contents, FIELDS[name]).extend(values)
    for name in rng.sample(sorted(COPIES.values()), rng.randrange(4)):
        asked.outputs.add(name=name)
    if rng.random() < 0.3:
        asked.parameters["unknown"].string_param = rng.choice(_TEXTS)
    if rng.random() < 0.3:
        asked.parameters["priority"].int64_param = rng.randrange(5)
    return asked


def _values(rng: random.Random, name: str) -> Sequence[Any]:
    if name == "x":
        return list(struct.unpack("<4f", rng.randbytes(16)))
    if name == "b":
        return [rng.random() < 0.5 for _ in range(3)]
    return [rng.choice(_TEXTS).encode() for _ in range(2)]


def packed(name: str, values: Sequence[Any]) -> bytes:
    """``values`` of the input ``name`` as raw bytes."""
    if name == "s":
        return b"".join(struct.pack("<I", len(value)) + value for value in values)
    return np.array(values, np.float32 if name == "x" else np.bool_).tobytes()


def _huge_shape(rng: random.Random, asked: Any) -> None:
    _some(rng, asked).shape[0] = rng.choice((-1, 0, 1 << 40, (1 << 63) - 1))


def _deep_shape(rng: random.Random, asked: Any) -> None:
    _some(rng, asked).shape.extend([1] * rng.choice((1, 14, 1000)))


def _other_datatype(rng: random.Random, asked: Any) -> None:
    _some(rng, asked).datatype = rng.choice(("FP64", "INT8", "BF16", "fp32", "", "D" * 9000))


def _other_name(rng: random.Random, asked: Any) -> None:
    _some(rng, asked).name = rng.choice(("", "x\0", "\u0445", "n" * 9000))


def _missing_input(rng: random.Random, asked: Any) -> None:
    del asked.inputs[rng.randrange(len(asked.inputs))]


def _input_twice(rng: random.Random, asked: Any) -> None:
    asked.inputs.add().CopyFrom(_some(rng, asked))
    asked.raw_input_contents.extend(asked.raw_input_contents[:1])


def _output_twice(rng: random.Random, asked: Any) -> None:
    for _ in range(2):
        asked.outputs.add(name="y")


def _unknown_output(rng: random.Random, asked: Any) -> None:
    asked.outputs.add(name="x" * rng.choice((1, 9000)))


def _longer_data(rng: random.Random, asked: Any) -> None:
    if asked.raw_input_contents:
        index = rng.randrange(len(asked.raw_input_contents))
        asked.raw_input_contents[index] += b"\0" * rng.choice((1, 4, 70_000))
    else:
        _some(rng, asked).contents.int_contents.append(rng.randrange(-5, 5))


def _shorter_data(rng: random.Random, asked: Any) -> None:
    if asked.raw_input_contents:
        index = rng.randrange(len(asked.raw_input_contents))
        asked.raw_input_contents[index] = asked.raw_input_contents[index][:-1]
    else:
        _some(rng, asked).ClearField("contents")


def _both_kinds(rng: random.Random, asked: Any) -> None:
    if asked.raw_input_contents:
        _some(rng, asked).contents.uint64_contents.append(1)
    else:
        asked.raw_input_contents.append(b"")


def _wrong_parameter(rng: random.Random, asked: Any) -> None:
    value = rng.choice(({"int64_param": -1}, {"bool_param": True}, {"string_param": "1"}))
    parameter = messages.InferParameter(**value)
    asked.parameters[rng.choice(("timeout", "priority"))].CopyFrom(parameter)


def _no_such_model(rng: random.Random, asked: Any) -> None:
    asked.model_name = rng.choice(("", "..", "copie\u0455", "copies\0", "copies/1", "n" * 9000))


def _no_such_version(rng: random.Random, asked: Any) -> None:
    asked.model_version = rng.choice(("0", "01", "2", "-1", "1\0", "9" * 9000))


#: Each makes one thing of a sound message wrong.
_WRONG: tuple[Callable[[random.Random, Any], None], ...] = (
    *(_huge_shape, _deep_shape, _other_datatype, _other_name, _missing_input, _input_twice),
    *(_output_twice, _unknown_output, _longer_data, _shorter_data, _both_kinds),
    *(_wrong_parameter, _no_such_model, _no_such_version),
)


def _some(rng: random.Random, asked: Any) -> Any:
    return asked.inputs[rng.randrange(len(asked.inputs))]


def _damage(rng: random.Random, data: bytearray) -> None:
    """Change a byte, cut the end off, repeat or drop a part, or let a length overflow."""
    at = rng.randrange(len(data) + 1)
    kind = rng.randrange(5)
    if kind == 0:
        data[at : at + 1] = rng.randbytes(1)
    elif kind == 1:
        del data[at:]
    elif kind == 2:
        data[at:at] = data[at : at + rng.randrange(40)]
    elif kind == 3:
        del data[at : at + rng.randrange(9)]
    else:
        data[at : at + 1] = b"\xff" * rng.choice((1, 4, 9, 11))
