"""Networks at random of every operator that export-c takes, with attributes that are not the defaults.

``python -m tests.pipeline.export_c.drawn [seconds] [first example]`` exports each, compiles the C, and
compares its answers with the engine's. Each node is computed as it is drawn, so shapes
are right, and numbers stay where a float has digits to compare.
"""

import contextlib
import random
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from models.compiler import CompileOptions
from models.errors import ModelError
from models.runtime.sessions import SessionError, open_session, run_session, session_options
from tests.fuzz.graphs import Scope, Value, port
from tests.fuzz.pack import chosen_run, run_examples
from tests.models.streamed import compiled, streamed
from tests.pipeline.export_c.compiled import Compiled, for_c

Numbers = NDArray[Any]
Feeds = dict[str, Numbers]

_OPSETS = (11, 13, 17, 18, 20, 20)
_MOST_ELEMENTS = 6000
_LARGEST = 100.0
_IR_VERSION = 9
_WITH_GELU = 20
_MATRIX = 2
_OF_BYTES = ("QuantizeLinear", "DequantizeLinear")
FLAGS = ("-std=c99", "-O2", "-Wall", "-Wextra", "-Werror", "-pedantic")
#: Differences beside the largest value: sums of floats in another order, one behind the other.
TOLERANCE = 1e-5
# What is farther from the same network in float64 is no rounding, but a fault of one of the two.
_MOST_ROUNDING = 1e-4
# Networks of bytes in a row that C does not take.
_MOST_REFUSED = 8


@dataclass(frozen=True)
class Case:
    """A network, and numbers for its inputs."""

    model: onnx.ModelProto
    feeds: Feeds

    @property
    def operators(self) -> list[str]:
        return [node.op_type for node in self.model.graph.node]


class Drawing:
    """A graph that grows; ``held`` has the numbers of every value and constant.

    ``bytes_of``: a type of bytes that each value becomes and each weight is kept in, None: they are floats.
    """

    def __init__(self, rng: random.Random, opset: int, bytes_of: str | None = None) -> None:
        self.rng = rng
        self.opset = opset
        self.bytes_of = bytes_of
        self.scope = Scope(rng, np.random.default_rng(rng.randrange(1 << 30)))
        self.held: Feeds = {}

    def input(self, shape: Sequence[int]) -> Value:
        value = Value(self.scope.name(), tuple(shape))
        self.scope.values.append(value)
        self.held[value.name] = self.scope.numbers.standard_normal(value.shape, np.float32)
        if self.bytes_of is not None:
            self._through_bytes(value)
        return value

    def constant(self, array: Any, dtype: Any = np.float32) -> str:
        held = np.asarray(array, dtype)
        name = self.scope.name()
        self.scope.weights.append(numpy_helper.from_array(held, name))
        self.held[name] = held
        return name

    def weight(self, *shape: int) -> str:
        fan = max(int(np.prod(shape[1:])), 1)
        numbers = self.scope.numbers.standard_normal(shape) / fan**0.5
        if self.bytes_of is None or len(shape) < _MATRIX:
            return self.constant(numbers)
        scale = np.abs(numbers).max() / 127
        held = np.round(numbers / scale).astype(np.int8)
        names = self.constant(held, np.int8), self.constant(scale), self.constant(0, np.int8)
        return self._node("DequantizeLinear", names, [np.float32(scale) * held])[0].name

    def factors(self, *shape: int) -> str:
        """Return numbers away from zero, of both signs."""
        signs = self.scope.numbers.choice((-1, 1), shape)
        return self.constant(signs * self.scope.numbers.uniform(0.5, 2.0, shape))

    def number(self, least: float, most: float) -> float:
        return round(self.rng.uniform(least, most), 3)

    def integers(self, *values: int) -> str:
        return self.constant(values, np.int64)

    def pick(self, *ranks: int) -> Value | None:
        known = [value for value in self.scope.values if not ranks or len(value.shape) in ranks]
        if not known:
            return None
        return known[-1] if self.rng.random() < 0.6 else self.rng.choice(known)

    def axis(self, value: Value) -> int:
        """Return an axis, counted from either end."""
        rank = len(value.shape)
        return self.rng.randrange(-rank, rank)

    def add(
        self, kind: str, inputs: Sequence[str], count: int = 1, **attributes: Any
    ) -> Value | None:
        """Add a node; return its first output, None: ONNX Runtime refuses it, or no numbers to compare."""
        made = helper.make_node(kind, inputs, [f"y{n}" for n in range(count)])
        made.attribute.extend(
            helper.make_attribute(name, value)
            for name, value in attributes.items()
            if value is not None
        )
        try:
            results = self._computed(made)
        except SessionError:
            return None
        if not all(map(_is_comparable, results)):
            return None
        values = self._node(kind, inputs, results, made.attribute)
        if self.bytes_of is not None:
            values = [self._through_bytes(value) for value in values]
        return values[0]

    def _node(
        self,
        kind: str,
        inputs: Sequence[str],
        results: Sequence[Numbers],
        attributes: Sequence[onnx.AttributeProto] = (),
    ) -> list[Value]:
        """Add a node that makes ``results``; return its outputs."""
        outputs = [self.scope.name() for _ in results]
        made = helper.make_node(kind, inputs, outputs)
        made.attribute.extend(attributes)
        self.scope.nodes.append(made)
        self.held |= dict(zip(outputs, results, strict=True))
        values = [Value(name, self.held[name].shape) for name in outputs]
        self.scope.values += values if kind not in _OF_BYTES else []
        return values

    def _through_bytes(self, value: Value) -> Value:
        """Add what makes bytes of ``value`` and floats again, which others read instead of it."""
        numbers = self.held[value.name]
        least, most = min(float(numbers.min()), 0.0), max(float(numbers.max()), 1e-3)
        limits = np.iinfo(self.bytes_of or "uint8")
        scale = np.float32((most - least) / (limits.max - limits.min))
        zero = round(float(limits.min - least / scale))
        names = self.constant(scale), self.constant(zero, limits.dtype)
        held = np.clip(np.round(numbers / scale) + zero, limits.min, limits.max)
        (there,) = self._node("QuantizeLinear", [value.name, *names], [held.astype(limits.dtype)])
        floats = (held.astype(np.float32) - np.float32(zero)) * scale
        (again,) = self._node("DequantizeLinear", [there.name, *names], [floats])
        self.scope.values[-1] = again
        return again

    def _computed(self, node: onnx.NodeProto) -> list[Numbers]:
        held = {name: self.held[name] for name in node.input if name}
        weights = {tensor.name for tensor in self.scope.weights}
        dtype = helper.np_dtype_to_tensor_dtype
        graph = helper.make_graph(
            [node],
            "node",
            [
                helper.make_tensor_value_info(name, dtype(array.dtype), array.shape)
                for name, array in held.items()
                if name not in weights
            ],
            [helper.make_empty_tensor_value_info(name) for name in node.output],
            [
                numpy_helper.from_array(array, name)
                for name, array in held.items()
                if name in weights
            ],
        )
        model = helper.make_model(graph, opset_imports=opsets(self.opset), ir_version=_IR_VERSION)
        feeds = {name: array for name, array in held.items() if name not in weights}
        session = open_session(model.SerializeToString(), session_options(optimise=False))
        results = list(run_session(session, feeds).values())
        for said, result in zip(session.get_outputs(), results, strict=True):
            if tuple(said.shape) != result.shape:
                raise SessionError(f"infers {said.shape}, makes {result.shape}")
        return results

    def listed(
        self, name: str, values: Sequence[int] | None, since: int
    ) -> tuple[list[str], dict[str, Any]]:
        """Return a list as an input, in operator sets from ``since`` on, or as an attribute."""
        if values is None:
            return [], {}
        if self.opset >= since:
            return [self.integers(*values)], {}
        return [], {name: list(values)}


def _is_comparable(array: Numbers) -> bool:
    if array.dtype != np.float32:
        return True
    return 0 < array.size <= _MOST_ELEMENTS and bool(np.abs(array).max() < _LARGEST)


def opsets(version: int) -> list[onnx.OperatorSetIdProto]:
    return [helper.make_opsetid("", version), helper.make_opsetid("com.microsoft", 1)]


FUNCTIONS: Mapping[str, Callable[[Drawing], dict[str, Any]]] = {
    "LeakyRelu": lambda d: {"alpha": d.number(-0.5, 0.9)},
    "Elu": lambda d: {"alpha": d.number(0.2, 3.0)},
    "Celu": lambda d: {"alpha": d.number(0.2, 3.0)},
    "HardSigmoid": lambda d: {"alpha": d.number(0.05, 1.0), "beta": d.number(-0.5, 0.9)},
    **dict.fromkeys(
        ("Relu", "Sigmoid", "Tanh", "HardSwish", "Erf", "Exp", "Neg", "Abs", "Softsign"),
        lambda _: {},
    ),
}


def function(d: Drawing) -> None:
    if x := d.pick():
        _function(d, x)


def _function(d: Drawing, x: Value) -> Value | None:
    kind = d.rng.choice((*FUNCTIONS, "Clip", "Reciprocal", "PRelu", "Gelu", "Swish"))
    if kind == "Clip":
        limits = d.number(-1.5, 0.2), d.number(0.3, 2.0)
        names = [d.constant(limit) if d.rng.random() < 0.8 else "" for limit in limits]
        return d.add("Clip", [x.name, *names])
    if kind == "Reciprocal":
        size = d.add("Abs", [x.name])
        away = d.add("Add", [size.name, d.constant(d.number(0.5, 1.0))]) if size else None
        return d.add("Reciprocal", [away.name]) if away else None
    if kind == "PRelu":
        kept = x.shape[d.rng.randrange(len(x.shape) + 1) :]
        slope = tuple(1 if d.rng.random() < 0.4 else n for n in kept)
        return d.add("PRelu", [x.name, d.factors(*slope)])
    if kind == "Gelu":
        return _gelu(d, x)
    if kind == "Swish":
        scaled = (
            d.add("Mul", [x.name, d.constant(d.number(0.5, 2.0))]) if d.rng.random() < 0.5 else x
        )
        gate = d.add("Sigmoid", [scaled.name]) if scaled else None
        return d.add("Mul", [x.name, gate.name]) if gate else None
    return d.add(kind, [x.name], **FUNCTIONS[kind](d))


def _gelu(d: Drawing, x: Value) -> Value | None:
    """GELU as one operator, exact or by a tanh, or in the five nodes that exporters write."""
    way = d.rng.choice(("exact", "tanh", "nodes")) if d.opset >= _WITH_GELU else "nodes"
    if way != "nodes":
        return d.add("Gelu", [x.name], approximate="none" if way == "exact" else way)
    y: Value | None = d.add("Div", [x.name, d.constant(2**0.5)])
    y = d.add("Erf", [y.name]) if y else None
    y = d.add("Add", [y.name, d.constant(1.0)]) if y else None
    y = d.add("Mul", [x.name, y.name]) if y else None
    return d.add("Mul", [y.name, d.constant(0.5)]) if y else None


def pair(d: Drawing) -> None:
    x = d.pick()
    if x is None:
        return
    kind = d.rng.choice(("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Pow", "Mod"))
    if kind == "Mod":  # of what is the same everywhere: it jumps
        x = d.scope.values[0]
        d.add(kind, [x.name, d.factors(*x.shape[d.rng.randrange(len(x.shape) + 1) :])], fmod=1)
        return
    if kind == "Pow":
        d.add(kind, [x.name, d.constant(np.full([1] * d.rng.randrange(3), 2))])
        return
    kept = x.shape[d.rng.randrange(len(x.shape) + 1) :]
    other = d.factors(*(1 if d.rng.random() < 0.4 else n for n in kept))
    alike = [value for value in d.scope.values if len(value.shape) <= 4 and value is not x]
    if alike and d.rng.random() < 0.5 and kind != "Div":
        other = d.rng.choice(alike).name  # refused where the shapes do not fit
    names = [x.name, other]
    if kind != "Div":
        d.rng.shuffle(names)
    if kind in {"Max", "Min", "Sum"}:
        names += [d.constant(d.number(-1, 1))] * d.rng.randrange(2)
    d.add(kind, names)


def _window(d: Drawing, x: Value, kernel: Sequence[int], pools: bool) -> dict[str, Any]:
    """Return strides, dilations and pads of ``kernel``; those of pools are smaller than it."""
    axes = len(kernel)
    given: dict[str, Any] = {"kernel_shape": list(kernel)}
    if d.rng.random() < 0.7:
        given["strides"] = [d.rng.randint(1, 3) for _ in range(axes)]
    way = d.rng.choice(("pads", "pads", "none", "SAME_UPPER", "SAME_LOWER", "VALID"))
    if way == "pads":
        given["pads"] = [d.rng.randint(0, n - 1 if pools else n) for n in (*kernel, *kernel)]
    elif way != "none":
        given["auto_pad"] = way
    if d.rng.random() < 0.4 and not way.startswith("SAME"):
        given["dilations"] = [d.rng.randint(1, 2) for _ in range(axes)]
    return given


def convolution(d: Drawing) -> None:
    x = d.pick(3, 4)
    if x is None:
        return
    channels = x.shape[1]
    groups = d.rng.choice([n for n in (1, 1, 2, 3, channels) if channels % n == 0])
    made = groups * d.rng.choice((1, 2, 5, 9) if groups < 4 else (1, 1, 2))
    kernel = [d.rng.randint(1, 3) for _ in x.shape[2:]]
    inputs = [x.name, d.weight(made, channels // groups, *kernel)]
    if d.rng.random() < 0.6:
        inputs.append(d.weight(made))
    _and_function(d, d.add("Conv", inputs, group=groups, **_window(d, x, kernel, pools=False)))


def _and_function(d: Drawing, y: Value | None) -> None:
    """Add what compilers make part of a product: a sum, a function."""
    if y and d.rng.random() < 0.3:
        alike = [value for value in d.scope.values if value.shape == y.shape]
        y = d.add("Add", [y.name, d.rng.choice(alike).name])
    if y and d.rng.random() < 0.7:
        _function(d, y)


def transposed_convolution(d: Drawing) -> None:
    x = d.pick(3, 4)
    if x is None:
        return
    channels = x.shape[1]
    groups = d.rng.choice([n for n in (1, 1, 2, channels) if channels % n == 0])
    kernel = [d.rng.randint(1, 4) for _ in x.shape[2:]]
    axes = len(kernel)
    strides = [d.rng.randint(1, 3) for _ in kernel]
    given: dict[str, Any] = {"group": groups, "strides": strides}
    way = d.rng.choice(("pads", "pads", "none", "SAME_UPPER", "SAME_LOWER", "VALID", "shape"))
    if way == "pads":
        given["pads"] = [d.rng.randint(0, n // 2) for n in (*kernel, *kernel)]
    elif way == "shape":
        sides = zip(x.shape[2:], strides, strict=True)
        given["output_shape"] = [n * stride + d.rng.randint(-1, 1) for n, stride in sides]
    elif way != "none":
        given["auto_pad"] = way
    if d.rng.random() < 0.3:
        given["output_padding"] = [d.rng.randrange(stride) for stride in strides]
    if d.rng.random() < 0.3 and not way.startswith("SAME"):
        given["dilations"] = [d.rng.randint(1, 2) for _ in range(axes)]
    inputs = [x.name, d.weight(channels, d.rng.choice((1, 2, 5)), *kernel)]
    if d.rng.random() < 0.6:
        inputs.append(d.weight(groups * d.scope.weights[-1].dims[1]))
    _and_function(d, d.add("ConvTranspose", inputs, **given))


def pool(d: Drawing) -> None:
    x = d.pick(3, 4)
    if x is None:
        return
    kind = d.rng.choice(("MaxPool", "AveragePool", "AveragePool", "MaxPool", "Global"))
    if kind == "Global":
        d.add(d.rng.choice(("GlobalMaxPool", "GlobalAveragePool")), [x.name])
        return
    given = _window(d, x, [d.rng.randint(1, 3) for _ in x.shape[2:]], pools=True)
    if kind == "AveragePool" and d.opset < 19:
        given.pop("dilations", None)
    if kind == "AveragePool":
        given["count_include_pad"] = d.rng.randrange(2)
    y = d.add(kind, [x.name], ceil_mode=d.rng.randrange(2), **given)
    if y and d.rng.random() < 0.3:
        _function(d, y)


def gemm(d: Drawing) -> None:
    x = d.pick(2)
    if x is None:
        return
    turned = d.rng.randrange(2), d.rng.randrange(2)
    rows, taken = x.shape[::-1] if turned[0] else x.shape
    made = d.rng.choice((1, 5, 12, 33))
    given: dict[str, Any] = {"transA": turned[0], "transB": turned[1]}
    given |= {key: d.number(0.3, 2.0) for key in ("alpha", "beta") if d.rng.random() < 0.5}
    inputs = [x.name, d.weight(made, taken) if turned[1] else d.weight(taken, made)]
    if d.rng.random() < 0.7:
        shapes = ((made,), (1, made), (1,), (), (rows, made), (rows, 1))
        inputs.append(d.factors(*d.rng.choice(shapes)))
    _and_function(d, d.add("Gemm", inputs, **given))


def matmul(d: Drawing) -> None:
    x = d.pick(2, 3, 4)
    if x is None:
        return
    if d.rng.random() < 0.6:
        y = d.add("MatMul", [x.name, d.weight(x.shape[-1], d.rng.choice((1, 4, 20)))])
        if y and d.rng.random() < 0.5:
            y = d.add("Add", [y.name, d.weight(y.shape[-1])])
        if y and d.rng.random() < 0.5:
            _function(d, y)
        return
    order = [*range(len(x.shape) - 2), len(x.shape) - 1, len(x.shape) - 2]
    other = d.add("Transpose", [x.name], perm=order)
    if other is None:
        return
    names = [x.name, other.name]
    d.rng.shuffle(names)
    y = d.add("MatMul", names)
    if y and d.rng.random() < 0.7:
        d.add("Mul", [y.name, d.constant(d.number(0.1, 0.5))])


def softmax(d: Drawing) -> None:
    if (x := d.pick()) and x.shape:
        d.add("Softmax", [x.name], axis=d.axis(x))


def reduction(d: Drawing) -> None:
    if (x := d.pick()) and x.shape:
        kind, rank = d.rng.choice(("ReduceMean", "ReduceMax")), len(x.shape)
        axes = d.rng.sample(range(rank), d.rng.randint(1, rank))
        signed = [axis - rank * d.rng.randrange(2) for axis in axes]
        names, given = d.listed("axes", signed if d.rng.random() < 0.9 else None, 18)
        d.add(kind, [x.name, *names], keepdims=d.rng.randrange(2), **given)


def batch_normalization(d: Drawing) -> None:
    if x := d.pick(2, 3, 4):
        spread = d.constant(d.scope.numbers.uniform(0.3, 2, x.shape[1]))
        channels = [d.factors(x.shape[1]), d.weight(x.shape[1]), d.weight(x.shape[1]), spread]
        d.add("BatchNormalization", [x.name, *channels], epsilon=d.number(0.001, 0.3))


def layer_normalization(d: Drawing) -> None:
    x = d.pick()
    if x is None or not x.shape:
        return
    axis = d.axis(x)
    length = int(np.prod(x.shape[axis:]))
    rows = d.held[x.name].reshape(-1, length)
    if rows.std(axis=1).min() < 0.1:  # what differs in the last digits alone would become large
        return
    names = [d.factors(*x.shape[axis:]), *[d.weight(*x.shape[axis:])] * d.rng.randrange(2)]
    d.add("LayerNormalization", [x.name, *names], axis=axis, epsilon=d.number(0.001, 0.1))


def concat(d: Drawing) -> None:
    x = d.pick()
    if x is None or not x.shape:
        return
    axis = d.axis(x)
    rest = [n for at, n in enumerate(x.shape) if at != axis % len(x.shape)]
    alike = [
        value.name
        for value in d.scope.values
        if len(value.shape) == len(x.shape)
        and [n for at, n in enumerate(value.shape) if at != axis % len(x.shape)] == rest
    ]
    parts = [x.name, *(d.rng.choice(alike) for _ in range(d.rng.randint(0, 2)))]
    if d.rng.random() < 0.3:
        parts.append(d.factors(*x.shape))
    d.add("Concat", parts, axis=axis)


def split(d: Drawing) -> None:
    x = d.pick()
    if x is None or not x.shape:
        return
    axis = d.axis(x)
    length = x.shape[axis]
    if length < 2:
        return
    first = d.rng.randrange(1, length)
    equal = d.rng.random() < 0.3 and (length % 2 == 0 or d.opset >= 18)
    names, given = d.listed("split", None if equal else [first, length - first], 13)
    if equal and d.opset >= 18:
        given["num_outputs"] = 2
    d.add("Split", [x.name, *names], 2, axis=axis, **given)


def slices(d: Drawing) -> None:
    x = d.pick()
    if x is None or not x.shape:
        return
    axes = d.rng.sample(range(len(x.shape)), d.rng.randint(1, len(x.shape)))
    starts, ends, steps = [], [], []
    for axis in axes:
        n = x.shape[axis]
        step, start = d.rng.choice((1, 1, 2, -1, -2)), d.rng.randint(-n, n)
        starts.append(start)
        ends.append(d.rng.choice((n + 2, -n - 9, d.rng.randint(-n, n), 2**31, -(2**31))))
        steps.append(step)
    signed = [axis - len(x.shape) * d.rng.randrange(2) for axis in axes]
    d.add("Slice", [x.name, *(d.integers(*each) for each in (starts, ends, signed, steps))])


def focus(d: Drawing) -> None:
    """Every second row and column as channels: what YOLOv5 begins with."""
    if (x := d.pick(4)) and x.shape[2] % 2 == 0 and x.shape[3] % 2 == 0:
        parts = []
        for column, row in ((0, 0), (0, 1), (1, 0), (1, 1)):
            starts = d.integers(row, column)
            ends, axes, steps = d.integers(9**9, 9**9), d.integers(2, 3), d.integers(2, 2)
            part = d.add("Slice", [x.name, starts, ends, axes, steps])
            if part is None:
                return
            parts.append(part.name)
        d.add("Concat", parts, axis=1)


def blocks(d: Drawing) -> None:
    x = d.pick(4)
    if x is None:
        return
    channels, *sides = x.shape[1:]
    if d.rng.random() < 0.5:
        sizes = [n for n in (2, 3) if channels % (n * n) == 0] or [1]
        mode = d.rng.choice((None, "DCR", "CRD"))
        d.add("DepthToSpace", [x.name], blocksize=d.rng.choice(sizes), mode=mode)
    else:
        sizes = [n for n in (2, 3) if not any(side % n for side in sides)] or [1]
        d.add("SpaceToDepth", [x.name], blocksize=d.rng.choice(sizes))


def gather(d: Drawing) -> None:
    if (x := d.pick()) and x.shape:
        axis = d.axis(x)
        index = d.rng.randrange(-x.shape[axis], x.shape[axis])
        names = d.constant(index, np.int64), d.integers(index)
        d.add("Gather", [x.name, d.rng.choice(names)], axis=axis)


def pad(d: Drawing) -> None:
    if (x := d.pick()) and x.shape:
        pads = [d.rng.choice((0, 0, 1, 2, -1 if n > 2 else 0)) for n in (*x.shape, *x.shape)]
        names = [x.name, d.integers(*pads)]
        if d.rng.random() < 0.7:
            names.append(d.constant(d.number(-2, 2)))
        d.add("Pad", names, mode=d.rng.choice((None, "constant")))


def movement(d: Drawing) -> None:
    x = d.pick()
    if x is None or not x.shape:
        return
    rank = len(x.shape)
    kind = d.rng.choice(("Transpose", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout"))
    if kind == "Transpose":
        order = d.rng.sample(range(rank), rank)
        d.add(kind, [x.name], perm=d.rng.choice((None, order, order)))
    elif kind == "Flatten":
        d.add(kind, [x.name], axis=d.rng.randint(-rank, rank))
    elif kind == "Squeeze":
        ones = [axis - rank * d.rng.randrange(2) for axis, n in enumerate(x.shape) if n == 1]
        names, given = d.listed("axes", ones[:2] if ones and d.rng.random() < 0.7 else None, 13)
        d.add(kind, [x.name, *names], **given)
    elif kind == "Unsqueeze" and rank < 4:
        axes = d.rng.sample(range(rank + 1), 1)
        names, given = d.listed("axes", [axes[0] - (rank + 1) * d.rng.randrange(2)], 13)
        d.add(kind, [x.name, *names], **given)
    elif kind in {"Identity", "Dropout"}:
        d.add(kind, [x.name])


def reshape(d: Drawing) -> None:
    x = d.pick()
    if x is None:
        return
    total, shape = int(np.prod(x.shape)), list[int]()
    while total > 1 and len(shape) < 3:
        shape.append(d.rng.choice([n for n in range(1, total + 1) if total % n == 0]))
        total //= shape[-1]
    wanted: list[int] = [*shape, total]
    if d.rng.random() < 0.5:
        wanted[d.rng.randrange(len(wanted))] = -1
    for axis, length in enumerate(x.shape[: len(wanted)]):
        if wanted[axis] == length and d.rng.random() < 0.4:
            wanted[axis] = 0
    d.add("Reshape", [x.name, d.integers(*wanted)])


def resize(d: Drawing) -> None:
    x = d.pick(3, 4)
    if x is None:
        return
    mode = d.rng.choice(("nearest", "linear", "linear"))
    ways = (
        "half_pixel",
        "half_pixel_symmetric",
        "pytorch_half_pixel",
        "asymmetric",
        "align_corners",
        None,
    )
    given: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": d.rng.choice(ways)}
    if mode == "nearest":
        roundings = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil", None)
        given["nearest_mode"] = d.rng.choice(roundings)
    sides = x.shape[2:]
    if d.rng.random() < 0.5:
        scales = [1.0, 1.0, *(d.rng.choice((1, 2, 2, 3, 0.5, 1.5)) for _ in sides)]
        d.add("Resize", [x.name, "", d.constant(scales)], **given)
    else:
        sizes = [
            *x.shape[:2],
            *(max(n * d.rng.choice((1, 2)) + d.rng.randint(-1, 1), 1) for n in sides),
        ]
        d.add("Resize", [x.name, "", "", d.integers(*sizes)], **given)


def expand(d: Drawing) -> None:
    if x := d.pick():
        ones = [d.rng.randint(1, 3) if n == 1 else d.rng.choice((1, n)) for n in x.shape]
        more = [d.rng.randint(1, 2)] * (len(x.shape) < 4 and d.rng.random() < 0.3)
        d.add("Expand", [x.name, d.integers(*more, *ones)])


def tile(d: Drawing) -> None:
    """Several repeated axes do not lie together, and a copy has six at most."""
    if (x := d.pick()) and x.shape:
        repeats = [1] * len(x.shape)
        repeats[d.axis(x)] = d.rng.randint(1, 3)
        d.add("Tile", [x.name, d.integers(*repeats)])


KINDS: Mapping[Callable[[Drawing], None], int] = {
    convolution: 6,
    transposed_convolution: 2,
    pool: 3,
    gemm: 4,
    matmul: 3,
    function: 4,
    pair: 4,
    softmax: 1,
    reduction: 2,
    batch_normalization: 1,
    layer_normalization: 1,
    concat: 2,
    split: 1,
    slices: 1,
    focus: 1,
    blocks: 1,
    gather: 1,
    pad: 1,
    movement: 2,
    reshape: 2,
    resize: 3,
    expand: 1,
    tile: 1,
}


#: What bits are compared of: of others ONNX Runtime computes some in floats, in an order of its own.
KINDS_OF_BYTES: Mapping[Callable[[Drawing], None], int] = {
    kind: often
    for kind, often in KINDS.items()
    if kind
    not in {transposed_convolution, batch_normalization, layer_normalization, reduction, resize}
}


def draw_case(rng: random.Random, more: int = 2, bytes_of: str | None = None) -> Case:
    """Return a network of one input whose last value is an output, and at most ``more`` others are."""
    d = Drawing(rng, rng.choice(_OPSETS if bytes_of is None else _OPSETS[1:]), bytes_of)
    kinds = KINDS if bytes_of is None else KINDS_OF_BYTES
    image = rng.choice((1, 1, 2)), rng.choice((1, 3, 8, 17)), rng.randint(1, 9), rng.randint(2, 9)
    others = (1, rng.choice((2, 6)), rng.randint(2, 12)), (rng.choice((1, 3)), rng.choice((5, 40)))
    given = d.input(rng.choice((image, image, image, *others)))
    wanted = rng.randint(3, 9) * (1 if bytes_of is None else 3)
    while len(d.scope.nodes) < wanted:
        rng.choices(list(kinds), list(kinds.values()))[0](d)
    made = [value.name for value in d.scope.values if value is not given]
    names = list(dict.fromkeys(made[-1:] + rng.sample(made, min(rng.randint(0, more), len(made)))))
    return Case(_model(d, given, names), {given.name: d.held[given.name]})


def _model(d: Drawing, given: Value, names: Sequence[str]) -> onnx.ModelProto:
    wanted, nodes = set(names), list[onnx.NodeProto]()
    for node in reversed(d.scope.nodes):
        if wanted.intersection(node.output):
            wanted.update(node.input)
            nodes.append(node)
    graph = helper.make_graph(
        nodes[::-1],
        "drawn",
        [port(given.name, "float32", given.shape)],
        [port(name, "float32", d.held[name].shape) for name in names],
        [tensor for tensor in d.scope.weights if tensor.name in wanted],
    )
    return helper.make_model(graph, opset_imports=opsets(d.opset), ir_version=_IR_VERSION)


def exported(case: Case, folder: Path, flags: Sequence[str] = FLAGS) -> Compiled:
    """Return ``case`` as C, compiled."""
    return Compiled.of(for_c(case.model, folder), folder / "c", flags)


def worst(case: Case, folder: Path) -> float:
    """Return how far C is from the engine at most, of the largest value of each output.

    Where that is over TOLERANCE: by how much C is farther from the same network in float64 than twice what
    the engine or ONNX Runtime is, for where sums cancel, rounding alone takes all of them as far.

    Raises:
        ExportError: it cannot be exported.
    """
    made = exported(case, folder)
    options = CompileOptions(chunk_bytes=8192)
    answers = streamed(compiled(folder / "source.onnx", folder, options), case.feeds)
    status, outputs = made.run(case.feeds)
    assert status == 0
    off = _farthest(outputs, answers)
    exact = _in_float64(case) if off > TOLERANCE else None
    if exact is None:
        return off
    plain = open_session(case.model.SerializeToString(), session_options(optimise=False))
    rounding = max(_farthest(each, exact) for each in (answers, run_session(plain, case.feeds)))
    return off if rounding > _MOST_ROUNDING else _farthest(outputs, exact) - 2 * rounding


def _farthest(got: Feeds, wanted: Feeds) -> float:
    return max(_difference(got[name], wanted[name]) for name in wanted)


def _difference(got: Numbers, wanted: Numbers) -> float:
    assert got.shape == wanted.shape
    np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
    return float(np.abs(got - wanted).max()) / (float(np.abs(wanted).max()) or 1.0)


def _in_float64(case: Case) -> Feeds | None:
    """Return the outputs in float64, by ONNX's reference; None where that fails."""
    model = onnx.ModelProto.FromString(case.model.SerializeToString())
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            wide = numpy_helper.to_array(tensor).astype(np.float64)
            tensor.CopyFrom(numpy_helper.from_array(wide, tensor.name))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    for node in model.graph.node:
        held = {attribute.name: attribute for attribute in node.attribute}
        if {"auto_pad", "ceil_mode"} <= held.keys():
            node.attribute.remove(held["ceil_mode"])  # the reference refuses both together
    feeds = {name: array.astype(np.float64) for name, array in case.feeds.items()}
    try:
        outputs = ReferenceEvaluator(model).run(None, feeds)
    except Exception:  # noqa: BLE001  it raises whatever NumPy does
        return None
    named = {
        port.name: np.asarray(array)
        for port, array in zip(model.graph.output, outputs, strict=True)
    }
    shapes = {
        port.name: tuple(d.dim_value for d in port.type.tensor_type.shape.dim)
        for port in model.graph.output
    }
    return named if all(named[name].shape == shape for name, shape in shapes.items()) else None


def attempt(number: int, folder: Path) -> bool:
    """Compare example ``number``, every third one in bytes; return whether there was an answer.

    Of floats none is refused. Of bytes some operators are: then others are drawn; those that are not have
    the same bits.
    """
    rng = random.Random(number)
    if number % 3 != 2:
        off = worst(case := draw_case(rng), folder)
        assert off <= TOLERANCE, f"{off}: {case.operators}"
        return True
    for again in range(_MOST_REFUSED):
        case, apart = draw_case(rng, bytes_of=rng.choice(("uint8", "int8"))), folder / str(again)
        apart.mkdir()
        with contextlib.suppress(ModelError):
            assert worst(case, apart) <= 0, case.operators
            return True
    return False


def main(arguments: list[str]) -> int:
    seconds, first = chosen_run(arguments)

    def run(number: int) -> bool:
        with tempfile.TemporaryDirectory() as name:
            return attempt(number, Path(name))

    return run_examples(run, seconds, first)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
