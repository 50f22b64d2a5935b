"""Operators on elements: functions of one, and sums, products and the like of two that are broadcast."""

from collections.abc import Callable, Sequence

import numpy as np

from pipeline.export_c.lowering.node import Operation, Shape, items
from pipeline.export_c.lowering.steps import ADD, After, Function, Named, Record, Value

_LARGEST = float(np.finfo(np.float32).max)
#: Dimensions of what two operands share, after those that lie together were joined.
_DIMENSIONS = 6

#: Operators of one operand: the function in C, and its attributes with their defaults.
_FUNCTIONS: dict[str, tuple[str, tuple[tuple[str, float], ...]]] = {
    "Relu": ("relu", ()),
    "LeakyRelu": ("leaky_relu", (("alpha", 0.01),)),
    "Sigmoid": ("sigmoid", ()),
    "Tanh": ("hyperbolic_tangent", ()),
    "HardSigmoid": ("hard_sigmoid", (("alpha", 0.2), ("beta", 0.5))),
    "HardSwish": ("hard_swish", ()),
    "Elu": ("elu", (("alpha", 1.0),)),
    "com.microsoft.QuickGelu": ("quick_gelu", (("alpha", 1.702),)),
    "Erf": ("error_function", ()),
    "com.microsoft.Gelu": ("gelu", ()),
    "com.microsoft.FastGelu": ("gelu_by_tangent", ()),
    "Exp": ("exponential", ()),
    "Neg": ("negative", ()),
    "Abs": ("absolute", ()),
    "Reciprocal": ("reciprocal", ()),
}
_PAIRS = {
    "Add": ADD,
    "Sub": "subtract",
    "Mul": "multiply_each",
    "Div": "divide",
    "PRelu": "scale_negative",
}
#: By attribute ``approximate``.
_GELUS = {"none": "gelu", "tanh": "gelu_by_tangent"}
_EXTREMES = {"Max": "larger", "Min": "smaller"}


def function(operation: Operation) -> None:
    """An operator that makes each element of one."""
    name, parameters = _FUNCTIONS[operation.node.operator]
    numbers = [float(operation.attribute(key, default)) for key, default in parameters]
    _map(operation, Function(name, (*numbers, *[0.0] * (2 - len(numbers)))))  # type: ignore[arg-type]


def gelu(operation: Operation) -> None:
    """Gelu of the standard: exact, or by a hyperbolic tangent."""
    way = operation.attribute("approximate", "none")
    if way not in _GELUS:
        operation.refuse(f"approximate {way}")
    _map(operation, Function(_GELUS[way]))


def clip(operation: Operation) -> None:
    """Clip, whose limits are attributes or constants."""
    limits = [
        float(operation.constant(position).reshape(-1)[0])
        if operation.has(position)
        else float(operation.attribute(name, default))
        for position, name, default in ((1, "min", -_LARGEST), (2, "max", _LARGEST))
    ]
    _map(operation, Function("clip", (limits[0], limits[1])))


def _map(operation: Operation, applied: Function) -> None:
    operation.floats(0)
    name, made = operation.name(0), operation.make(operation.shape(0))
    operation.step(
        "apply",
        *(operation.operand(0), Value(made), items(operation.shape(0))),
        in_place=(name,),
        pointwise=True,
        after=After(function=applied),
    )


def pair(operation: Operation) -> None:
    """An operator of two operands."""
    combine(operation, operation.node.operator)


def combine(operation: Operation, operator: str) -> None:
    """Add ``operator`` of inputs 0 and 1, each broadcast to the shape of both."""
    operation.floats(0, 1)
    shape = broadcast(operation, 0, 1)
    made = operation.make(shape)
    strides = [strides_in(operation.shape(position), shape) for position in (0, 1)]
    joined, steps = join_dimensions(shape, strides, operation)
    known = {**_PAIRS, **_EXTREMES}
    fields = {"size": joined, "first": steps[0], "second": steps[1]}
    whole = [position for position in (0, 1) if operation.shape(position) == shape]
    operation.step(
        "combine",
        *(operation.operand(0), operation.operand(1), Value(made)),
        Record("pairs", fields),
        Named(known[operator]),
        in_place=[operation.name(n) for n in whole if not operation.is_constant(n)],
        pointwise=True,
        after=After(),
    )


def extreme(operation: Operation) -> None:
    """Max or Min of any number of operands, pair by pair."""
    name, *others = operation.node.inputs
    for number, other in enumerate(others or [name], 1):
        made = (
            operation.node.output if number >= len(others) else f"{operation.node.output}/{number}"
        )
        pair(operation.on([name, other], made))
        name = made


def power(operation: Operation) -> None:
    """Pow by two: a product of a value with itself."""
    exponent = operation.constant(1)
    if exponent.size != 1 or exponent.reshape(-1)[0] != 2:
        operation.refuse("an exponent that is not 2")
    operation.floats(0)
    made, count = operation.make(broadcast(operation, 0, 1)), items(operation.shape(0))
    ones = (1,) * (_DIMENSIONS - 1)
    operation.step(
        "combine",
        *(operation.operand(0), operation.operand(0), Value(made)),
        Record("pairs", {"size": (*ones, count), "first": (*ones, 1), "second": (*ones, 1)}),
        Named(_PAIRS["Mul"]),
        in_place=(operation.name(0),),
        pointwise=True,
        after=After(),
    )


def broadcast(operation: Operation, one: int, other: int) -> Shape:
    """Return the shape of both inputs together."""
    shapes = operation.shape(one), operation.shape(other)
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        operation.refuse(f"shapes {list(shapes[0])} and {list(shapes[1])}")


def strides_in(shape: Shape, whole: Shape) -> list[int]:
    """Return the elements from one to the next along each dimension of ``whole``, 0 where it repeats."""
    lengths = (*[1] * (len(whole) - len(shape)), *shape)
    return [0 if length == 1 else items(lengths[axis + 1 :]) for axis, length in enumerate(lengths)]


def join_dimensions(
    shape: Sequence[int], strides: Sequence[Sequence[int]], operation: Operation
) -> tuple[Shape, list[Shape]]:
    """Return ``shape`` and ``strides`` with dimensions joined that lie together in all, in six at most."""
    kept: list[tuple[int, list[int]]] = []
    for length, *steps in zip(shape, *strides, strict=True):
        if length == 1:
            continue
        if kept and all(old == step * length for old, step in zip(kept[-1][1], steps, strict=True)):
            kept[-1] = (kept[-1][0] * length, list(steps))
        else:
            kept.append((length, list(steps)))
    if len(kept) > _DIMENSIONS:
        operation.refuse(f"{len(kept)} dimensions that do not lie together, at most {_DIMENSIONS}")
    kept = [(1, [0] * len(strides))] * (_DIMENSIONS - len(kept)) + kept
    return tuple(n for n, _ in kept), [
        tuple(steps[number] for _, steps in kept) for number in range(len(strides))
    ]


OPERATORS: dict[str, Callable[[Operation], None]] = {
    **dict.fromkeys(_FUNCTIONS, function),
    **dict.fromkeys(_PAIRS, pair),
    **dict.fromkeys(_EXTREMES, extreme),
    "Clip": clip,
    "Gelu": gelu,
    "Pow": power,
}
