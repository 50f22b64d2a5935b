"""Programs as nodes of ONNX Runtime (kernels/custom_operator.c), and sessions of such nodes.

A session with such a node computes its chain on ONNX Runtime's own threads. It is opened with the native
library, ``open_piece(graph, threads, operators=library.path)``. Pieces and such nodes can be in one graph.
"""

import functools
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from models.runtime.sessions import SessionError, open_piece, run_session
from models.runtime.wire import (
    FLOAT,
    TYPE_INTS,
    AttributeField,
    DimensionField,
    GraphField,
    ModelField,
    NodeField,
    OpsetField,
    ShapeField,
    TensorTypeField,
    TypeField,
    ValueField,
    field,
    packed,
)
from pipeline.devices.elementwise.programs import NativeProgram, NativeStep
from pipeline.devices.interface.native import (
    CHAIN,
    DOMAIN,
    JOB,
    MAX_AXES,
    OPERATOR_OF,
    PROGRAM,
    WORTH_SHARING,
)

# ONNX's messages as bytes, written without the ONNX library, which a serving process does not load.

#: Of the format of ONNX's files.
_IR_VERSION = 8

#: A tensor of floats: its name and the length of each axis.
Port = tuple[str, tuple[int, ...]]


def node(
    operator: str,
    domain: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    **attributes: Sequence[int],
) -> bytes:
    """Return a node, a message of its own, whose ``attributes`` are lists of integers."""
    return b"".join(
        (
            *(field(NodeField.INPUT, name) for name in inputs),
            *(field(NodeField.OUTPUT, name) for name in outputs),
            field(NodeField.OP_TYPE, operator),
            *(
                field(NodeField.ATTRIBUTE, _integers(name, numbers))
                for name, numbers in attributes.items()
            ),
            field(NodeField.DOMAIN, domain),
        )
    )


def model(
    nodes: Sequence[bytes],
    inputs: Sequence[Port],
    outputs: Sequence[Port],
    domains: Sequence[tuple[str, int]],
) -> bytes:
    """Return a model of ``nodes``, with the versions of the ``domains`` that they are from."""
    graph = (
        *(field(GraphField.NODE, each) for each in nodes),
        field(GraphField.NAME, "g"),
        *(field(GraphField.INPUT, _port(each)) for each in inputs),
        *(field(GraphField.OUTPUT, _port(each)) for each in outputs),
    )
    imports = (
        field(
            ModelField.OPSET_IMPORT,
            field(OpsetField.DOMAIN, domain) + field(OpsetField.VERSION, version),
        )
        for domain, version in domains
    )
    return b"".join(
        (
            field(ModelField.IR_VERSION, _IR_VERSION),
            field(ModelField.GRAPH, b"".join(graph)),
            *imports,
        )
    )


def _integers(name: str, numbers: Sequence[int]) -> bytes:
    return (
        field(AttributeField.NAME, name)
        + packed(AttributeField.INTS, numbers)
        + field(AttributeField.TYPE, TYPE_INTS)
    )


def _port(port: Port) -> bytes:
    name, lengths = port
    axes = (field(DimensionField.DIM_VALUE, length) for length in lengths)
    shape = b"".join(field(ShapeField.DIM, axis) for axis in axes)
    tensor = field(TensorTypeField.ELEM_TYPE, FLOAT) + field(TensorTypeField.SHAPE, shape)
    return field(ValueField.NAME, name) + field(
        ValueField.TYPE, field(TypeField.TENSOR_TYPE, tensor)
    )


# Programs as nodes of ONNX Runtime: the operator `Chain` of kernels/custom_operator.c.

_OPSET_VERSION = 1

Shape = tuple[int, ...]


def chain_node(
    program: NativeProgram, shapes: Sequence[Shape], names: Sequence[str]
) -> bytes | None:
    """Return ``program`` as a serialised node; None: its ``shapes`` do not fit.

    ``shapes`` and ``names``: of its inputs, then of its results, all floats.
    """
    inputs, outputs = names[: program.n_inputs], names[program.n_inputs :]
    whole = shapes[program.n_inputs]
    strides = [strides_of(shape, whole) for shape in shapes]
    if None in strides or len(whole) > MAX_AXES:
        return None
    numbers = [len(inputs), len(outputs), len(whole), len(program.steps), *whole]
    for stride in strides[: program.n_inputs]:
        numbers += stride or ()
    for operator, *places, p, q in program.steps:
        numbers += (operator, *places, _bits(p), _bits(q))
    return node(CHAIN, DOMAIN, inputs, outputs, **{PROGRAM: numbers})


def chain_model(program: NativeProgram, shapes: Sequence[Shape]) -> bytes | None:
    """Return a model of ``program`` alone, with the ports of ``chain_node``; None: as there.

    They are called x0, x1, ... and y0, y1, ...: models that do the same are the same.
    """
    inputs = [(f"x{number}", shape) for number, shape in enumerate(shapes[: program.n_inputs])]
    outputs = [(f"y{number}", shape) for number, shape in enumerate(shapes[program.n_inputs :])]
    only = chain_node(program, shapes, [name for name, _ in (*inputs, *outputs)])
    return None if only is None else model([only], inputs, outputs, [(DOMAIN, _OPSET_VERSION)])


def holds_chain(graph: bytes) -> bool:
    """Return whether a serialised graph may have chains: it names their domain."""
    return DOMAIN.encode() in graph


@functools.cache
def why_not_shared(library: Path) -> str | None:
    """Return why ONNX Runtime does not run chains of ``library`` on its threads; None: it was tried."""
    program = NativeProgram(1, (NativeStep(OPERATOR_OF["negative", 1], 1, 0, 0),))
    tried = np.arange(2 * WORTH_SHARING, dtype=np.float32)
    model = chain_model(program, [tried.shape, tried.shape])
    if model is None:
        return "its program is none"
    try:
        computed = run_session(open_piece(model, operators=library), {"x0": tried})["y0"]
    except SessionError as exc:
        return f"ONNX Runtime takes no operator of ours: {str(exc)[:200]}"
    return None if np.array_equal(computed, -tried) else "ONNX Runtime's threads give other numbers"


def strides_of(shape: Shape, whole: Shape) -> tuple[int, int] | None:
    """Return plane and width (library.Placed) of ``shape`` beside results of the shape ``whole``.

    None: it is neither as large nor one number for each channel.
    """
    shape = (*[1] * (len(whole) - len(shape)), *shape)
    if shape == whole:
        return 0, 0
    if len(shape) != len(whole):
        return None
    differing = [axis for axis, length in enumerate(whole) if shape[axis] != length]
    first, end = differing[0], differing[-1] + 1
    if any(length != 1 for length in shape[first:end]):
        return None
    width = int(np.prod(whole[end:], dtype=np.int64))
    return width * int(np.prod(whole[first:end], dtype=np.int64)), width


def _bits(number: float) -> int:
    (bits,) = struct.unpack("<I", struct.pack("<f", number))
    return int(bits)


# A session that does what its thread was handed: how ONNX Runtime's threads do what is ours.

#: A model with the one operator that does what its thread was handed (kernels/custom_operator.c).
JOB_MODEL = model(
    [node(JOB, DOMAIN, ["x"], ["y"])], [("x", (1,))], [("y", (1,))], [(DOMAIN, _OPSET_VERSION)]
)
#: What its session and its binding take of the heap. Measured 27 KB.
JOB_BYTES = 36 << 10

#: Loads a model and binds it to inputs and outputs; what is returned raises KernelError.
Bind = Callable[[bytes, Sequence[Any], Sequence[Any]], Callable[[], None]]

_Given = TypeVar("_Given")


class JobSession:
    """Does the jobs of one model by ``bind``, one at a time.

    A model has one of its own, since a binding is for one sweep at a time.
    """

    def __init__(self, bind: Bind) -> None:
        self._bind = bind
        self._ports = np.zeros((2, 1), np.float32)  # the binding has their addresses only
        self._job: Callable[[], None] | None = None

    def prepare(self) -> None:
        """Load the session: when what needs it is bound, so that no first request takes memory."""
        if self._job is None:
            given, made = self._ports
            self._job = self._bind(JOB_MODEL, [given], [made])

    def run(self, hand_over: Callable[[_Given | None], None], given: _Given) -> None:
        """Do what ``hand_over`` hands this thread of ``given``, and takes back with None.

        Raises:
            KernelError: ONNX Runtime fails.
        """
        assert self._job is not None, "what runs was prepared"
        hand_over(given)
        try:
            self._job()
        finally:
            hand_over(None)
