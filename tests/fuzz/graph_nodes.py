"""What graphs at random are made of: a function a kind of node, each adds to a scope or does nothing."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from tests.fuzz.graphs import Scope, Shape, Value, port

Add = Callable[[Scope], object]

# Square weights of more rows would be hundreds of megabytes.
_WIDEST = 256
UNARY = (
    "Relu",
    "Sigmoid",
    "Tanh",
    "LeakyRelu",
    "Neg",
    "Abs",
    "HardSigmoid",
    "Softplus",
    "Identity",
)


def unary(s: Scope) -> None:
    if x := s.pick():
        s.node(s.rng.choice(UNARY), [x.name], x.shape)


def mish(s: Scope) -> None:
    if x := s.pick():
        t = s.node("Tanh", [s.node("Softplus", [x.name], x.shape).name], x.shape)
        s.node("Mul", [x.name, t.name], x.shape)


def binary(s: Scope) -> None:
    x = s.pick()
    if x is None:
        return
    others = [value for value in s.values if value.shape == x.shape]
    other = s.rng.choice(others).name if s.chance(0.6) else s.weight(_broadcast(s, x.shape), 1.0)
    names = [x.name, other]
    s.rng.shuffle(names)
    s.node(s.rng.choice(("Add", "Mul", "Sub", "Max")), names, x.shape)


def _broadcast(s: Scope, shape: Shape) -> Shape:
    kept = shape[s.rng.randrange(len(shape) + 1) :] if shape else ()
    return tuple(1 if s.chance(0.4) else s.size(length) for length in kept)


def convolution(s: Scope) -> None:
    x = s.pick(4)
    if x is None:
        return
    batch, channels, height, width = x.shape
    kernel = s.rng.choice((1, 1, 3))
    group = channels if s.chance(0.15) else 1
    made = channels * s.rng.choice((1, 2)) if group > 1 else s.rng.choice((1, 3, 8, 16, 24))
    pad, stride = s.rng.choice((0, kernel // 2)), s.rng.choice((1, 1, 2))
    inputs = [x.name, s.weight((made, s.size(channels // group), kernel, kernel))]
    if s.chance(0.5):
        inputs.append(s.weight((s.size(made),), 1.0))
    sides = [max((side + 2 * pad - kernel) // stride + 1, 0) for side in (height, width)]
    y = s.node(
        "Conv",
        inputs,
        (batch, made, *sides),
        pads=[pad] * 4,
        strides=[stride] * 2,
        group=group,
        kernel_shape=[kernel] * 2,
    )
    if s.chance(0.3):
        s.node("Relu", [y.name], y.shape)


def norm(s: Scope) -> None:
    if x := s.pick(4):
        stats = [s.weight((s.size(x.shape[1]),), 1.0) for _ in range(3)]
        spread = s.constant(np.ones(x.shape[1], np.float32))
        s.node("BatchNormalization", [x.name, *stats, spread], x.shape)


def pool(s: Scope) -> None:
    x = s.pick(4)
    if x is None:
        return
    kind = s.rng.choice(("MaxPool", "AveragePool", "GlobalAveragePool"))
    if kind.startswith("Global"):
        s.node(kind, [x.name], (*x.shape[:2], 1, 1))
        return
    sides = tuple(side // 2 for side in x.shape[2:])
    s.node(kind, [x.name], (*x.shape[:2], *sides), kernel_shape=[2, 2], strides=[2, 2])


def resize(s: Scope) -> None:
    if x := s.pick(4):
        scales = s.constant(np.array([1, 1, 2, 2], np.float32))
        shape = (*x.shape[:2], 2 * x.shape[2], 2 * x.shape[3])
        if math.prod(shape) < 40_000:
            s.node("Resize", [x.name, "", scales], shape, mode="nearest")


def gemm(s: Scope) -> None:
    x = s.pick(2)
    if x is None:
        return
    rows, taken = x.shape
    made = s.rng.choice((1, 5, 32, 70))
    turned = int(s.chance(0.6))
    shape = (made, s.size(taken)) if turned else (s.size(taken), made)
    inputs = [x.name, s.weight(shape)]
    if s.chance(0.5):
        inputs.append(s.weight(s.rng.choice(((s.size(made),), (1, made), (1,), (rows, made))), 1.0))
    s.node("Gemm", inputs, (rows, made), transB=turned)


def matmul(s: Scope) -> None:
    if (x := s.pick()) and x.shape:
        made = s.rng.choice((1, 4, 40))
        s.node("MatMul", [x.name, s.weight((s.size(x.shape[-1]), made))], (*x.shape[:-1], made))


def reshape(s: Scope) -> None:
    x = s.pick()
    if x is None:
        return
    total = math.prod(x.shape)
    shape: list[int] = []
    while total > 1 and len(shape) < 4:
        divisors = [n for n in range(1, total + 1) if total % n == 0]
        shape.append(s.rng.choice(divisors) if len(shape) < 3 else total)
        total //= shape[-1]
    shape[-1:] = [shape[-1] * total] if shape else []
    asked = [s.size(length) for length in shape]
    if asked and s.chance(0.4):
        asked[s.rng.randrange(len(asked))] = -1
    for axis, length in enumerate(x.shape[: len(asked)]):
        if asked[axis] == length and s.chance(0.3):
            asked[axis] = 0
    s.node("Reshape", [x.name, s.integers(*asked)], tuple(shape))


def dynamic_reshape(s: Scope) -> None:
    """Reshape to a shape that is computed, as exporters of PyTorch write it."""
    x = s.pick()
    if x is None or not x.shape:
        return
    size = s.node("Shape", [x.name], (len(x.shape),))
    s.values.pop()
    first = s.node("Gather", [size.name, s.integers(0)], (1,))
    s.values.pop()
    asked = s.node("Concat", [first.name, s.integers(-1)], (2,), axis=0)
    s.values.pop()
    if math.prod(x.shape):
        s.node("Reshape", [x.name, asked.name], (x.shape[0], math.prod(x.shape[1:])))


def flatten(s: Scope) -> None:
    if (x := s.pick()) and x.shape:
        axis = s.rng.randrange(len(x.shape) + 1)
        s.node(
            "Flatten", [x.name], (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])), axis=axis
        )


def squeeze(s: Scope) -> None:
    x = s.pick()
    if x is None:
        return
    ones = [axis for axis, length in enumerate(x.shape) if length == 1]
    if ones and s.chance(0.5):
        axis = s.rng.choice(ones)
        s.node("Squeeze", [x.name, s.integers(axis)], (*x.shape[:axis], *x.shape[axis + 1 :]))
    elif len(x.shape) < 5:
        axis = s.rng.randrange(len(x.shape) + 1)
        shape = (*x.shape[:axis], 1, *x.shape[axis:])
        s.node("Unsqueeze", [x.name, s.integers(axis)], shape)


def transpose(s: Scope) -> None:
    if (x := s.pick()) and x.shape:
        order = list(range(len(x.shape)))
        s.rng.shuffle(order)
        s.node("Transpose", [x.name], tuple(x.shape[axis] for axis in order), perm=order)


def concat(s: Scope) -> None:
    x = s.pick()
    if x is None or not x.shape:
        return
    axis = s.rng.randrange(len(x.shape))

    def fits(other: Value) -> bool:
        return len(other.shape) == len(x.shape) and all(
            own == length
            for at, (own, length) in enumerate(zip(other.shape, x.shape, strict=True))
            if at != axis
        )

    parts = [
        x,
        *(s.rng.choice([v for v in s.values if fits(v)]) for _ in range(s.rng.choice((1, 2)))),
    ]
    shape = list(x.shape)
    shape[axis] = sum(part.shape[axis] for part in parts)
    if math.prod(shape) < 40_000:
        s.node("Concat", [part.name for part in parts], tuple(shape), axis=axis)


def slices(s: Scope) -> None:
    if (x := s.pick()) and x.shape:
        axis = s.rng.randrange(len(x.shape))
        length = x.shape[axis]
        start = s.rng.randrange(length + 1)
        end = s.rng.randint(start, length + 1)
        shape = (*x.shape[:axis], min(end, length) - start, *x.shape[axis + 1 :])
        if math.prod(shape):
            s.node("Slice", [x.name, *(s.integers(n) for n in (start, end, axis))], shape)


def split(s: Scope) -> None:
    x = s.pick()
    axes = [axis for axis, length in enumerate(x.shape) if length % 2 == 0 and length] if x else []
    if x is not None and axes:
        axis = s.rng.choice(axes)
        half = x.shape[axis] // 2
        shape = (*x.shape[:axis], half, *x.shape[axis + 1 :])
        sizes = s.integers(half, s.size(half))
        y = s.node("Split", [x.name, sizes], shape, count=2, axis=axis)
        if s.chance(0.5):
            s.values.append(Value(s.nodes[-1].output[1], y.shape))


def reduce(s: Scope) -> None:
    if (x := s.pick()) and x.shape and math.prod(x.shape):
        axis = s.rng.randrange(len(x.shape))
        shape = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
        s.node(s.rng.choice(("ReduceMean", "ReduceMax")), [x.name], shape, axes=[axis], keepdims=1)


def softmax(s: Scope) -> None:
    if (x := s.pick()) and x.shape:
        s.node("Softmax", [x.name], x.shape, axis=s.rng.randrange(len(x.shape)))


def gather(s: Scope) -> None:
    if (x := s.pick()) and x.shape and x.shape[0]:
        indices = [s.size(s.rng.randrange(x.shape[0]) + 1) - 1 for _ in range(3)]
        s.node("Gather", [x.name, s.integers(*indices)], (3, *x.shape[1:]), axis=0)


def select(s: Scope) -> None:
    """A comparison and a Where: booleans between floats."""
    if x := s.pick():
        zero = s.constant(np.zeros((), np.float32))
        test = s.node("Greater", [x.name, zero], x.shape)
        s.values.pop()
        s.node("Where", [test.name, x.name, zero], x.shape)


def casts(s: Scope) -> None:
    """Through another element type and back."""
    if x := s.pick():
        kind = s.rng.choice((TensorProto.DOUBLE, TensorProto.FLOAT16))
        s.quantised |= kind == TensorProto.FLOAT16
        there = s.node("Cast", [x.name], x.shape, to=kind)
        s.values.pop()
        again = s.node("Mul", [there.name, there.name], x.shape) if s.chance(0.5) else there
        s.values[:] = [value for value in s.values if value is not again]
        s.node("Cast", [again.name], x.shape, to=TensorProto.FLOAT)


def quantise(s: Scope) -> None:
    """Quantised and back, perhaps with a convolution between, as tools for quantisation write it."""
    x = s.pick(4) or s.pick()
    if x is None:
        return
    s.quantised = True
    scale = s.constant(np.array(0.05, np.float32))
    zero = s.constant(np.array(3, np.uint8))
    q = s.node("QuantizeLinear", [x.name, scale, zero], x.shape)
    s.values.pop()
    shape = x.shape
    if len(x.shape) == 4 and s.chance(0.6):
        made = s.rng.choice((4, 16))
        array = s.numbers.integers(-9, 9, (made, s.size(x.shape[1]), 1, 1)).astype(np.int8)
        weight, none = s.constant(array), s.constant(np.array(0, np.int8))
        shape = (x.shape[0], made, *x.shape[2:])
        inputs = [q.name, scale, zero, weight, scale, none, scale, zero]
        q = s.node("QLinearConv", inputs, shape)
        s.values.pop()
    s.node("DequantizeLinear", [q.name, scale, zero], shape)


def branch(s: Scope) -> None:
    """An If whose branches compute something of the same shape with weights of their own."""
    x = s.pick()
    if x is None or s.depth > 1:
        return
    total = s.node("ReduceSum", [x.name], (), keepdims=0)
    s.values.pop()
    zero = s.constant(np.zeros((), np.float32))
    test = s.node("Greater", [total.name, zero], ())
    s.values.pop()
    graphs: dict[str, Any] = {}
    for role in ("then_branch", "else_branch"):
        body = s.body()
        result = _same_shape(body, x)
        s.quantised |= body.quantised
        graphs[role] = helper.make_graph(
            body.nodes, role, [], [port(result.name, "float32", None)], body.weights
        )
    s.node("If", [test.name], x.shape, **graphs)


def loop(s: Scope) -> None:
    """A Loop that keeps the shape of what it carries."""
    x = s.pick()
    if x is None or s.depth > 1 or not math.prod(x.shape):
        return
    carried = Value(s.name(), x.shape)
    body = s.body([carried])
    result = _same_shape(body, carried)
    s.quantised |= body.quantised
    again, going = body.name(), s.name()
    body.nodes.append(helper.make_node("Identity", [going], [again]))
    step = s.name()
    inputs = [
        port(step, "int64", []),
        port(going, "bool", []),
        port(carried.name, "float32", x.shape),
    ]
    outputs = [port(again, "bool", []), port(result.name, "float32", x.shape)]
    graph = helper.make_graph(body.nodes, "body", inputs, outputs, body.weights)
    trips = s.constant(np.array(s.rng.randrange(3), np.int64))
    yes = s.constant(np.array(True))
    s.node("Loop", [trips, yes, x.name], x.shape, body=graph)


def _same_shape(body: Scope, x: Value) -> Value:
    """Add nodes that read ``x`` and end in its shape."""
    y = x
    if len(x.shape) == 4 and x.shape[1] <= _WIDEST and body.chance(0.7):
        channels = body.size(x.shape[1])
        weight = body.weight((x.shape[1], channels, 3, 3))
        y = body.node("Conv", [x.name, weight], x.shape, pads=[1, 1, 1, 1])
    elif x.shape and x.shape[-1] <= _WIDEST and body.chance(0.7):
        y = body.node("MatMul", [x.name, body.weight((x.shape[-1], x.shape[-1]))], x.shape)
    if body.chance(0.3):
        body.rng.choice((branch, loop))(body)
        if body.values[-1].shape == x.shape:
            y = body.values[-1]
    if body.chance(0.1):
        return Value(body.weight(x.shape, 1.0), x.shape)
    return body.node(body.rng.choice(("Tanh", "Neg", "Sigmoid")), [y.name], x.shape)


KINDS: tuple[tuple[Add, int], ...] = (
    (unary, 3),
    (mish, 1),
    (binary, 4),
    (convolution, 7),
    (norm, 2),
    (pool, 2),
    (resize, 1),
    (gemm, 3),
    (matmul, 2),
    (reshape, 4),
    (dynamic_reshape, 1),
    (flatten, 2),
    (squeeze, 2),
    (transpose, 2),
    (concat, 3),
    (slices, 2),
    (split, 1),
    (reduce, 1),
    (softmax, 1),
    (gather, 1),
    (select, 1),
    (casts, 1),
    (quantise, 1),
    (branch, 2),
    (loop, 1),
)
