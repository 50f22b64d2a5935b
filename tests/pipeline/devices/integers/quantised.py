"""Quantised layers with random weights as pieces, run by ONNX Runtime and by the native library."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from models.compiler.cutting.quantised_tasks import FoundTask, whole_task
from models.graphs.graph import Graph
from models.graphs.reader import graph_of
from models.graphs.writer import constant_offsets
from models.network.fields import Array
from models.network.operators.quantised import Quantised, QuantisedAverage
from models.runtime.sessions import open_piece, run_session
from pipeline.devices.cpu import CpuDevice
from pipeline.devices.elementwise.library import Library
from pipeline.devices.elementwise.operator_node import JobSession
from pipeline.devices.integers.native_layers import BoundTask, bind_average, bind_task, fitted
from pipeline.devices.integers.tasks import constants_in
from tests.pipeline.devices.elementwise.chains import library

Arrays = Mapping[str, NDArray[Any]]


@dataclass
class Network:
    """Nodes that are added one by one; ``last``: the name of what the newest makes, and its shape.

    ``largest_weight``: of signed ones, 127 or 128 below zero.
    """

    seed: int
    shape: tuple[int, ...]
    dtype: str = "uint8"
    weight_dtype: str = "int8"
    largest_weight: int = 127
    apart: bool = True
    zeros: bool = False
    source: str = "x"
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, NDArray[Any]] = field(default_factory=dict)
    values: dict[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        self.given = {"x": self._bytes(self.dtype, self.shape)}
        self.last = "x"
        self.scaling = self._scaling("x", self.dtype)

    def picture(self, planes: tuple[int, ...], rows: slice, columns: slice) -> "Network":
        """Begin with a rectangle of an image of floats instead of bytes."""
        self.given = {"x": self.random.normal(0, 2, planes).astype(np.float32)}
        names = [*self.scaling]
        self.nodes.append(helper.make_node("QuantizeLinear", ["x", *names], ["q"]))
        self._make("q", planes)
        name, shape = "q", list(planes)
        for axis, cut in ((2, rows), (3, columns)):
            bounds = [self._constant(np.array([n], np.int64)) for n in (cut.start, cut.stop, axis)]
            self.nodes.append(helper.make_node("Slice", [name, *bounds], [f"cut{axis}"]))
            name, shape[axis] = f"cut{axis}", cut.stop - cut.start
            self._make(name, shape)
        self.nodes.append(helper.make_node("Transpose", [name], ["turned"], perm=[0, 2, 3, 1]))
        self._make("turned", (1, *shape[2:], planes[1]))
        return self

    def joined(self, *channels: int) -> "Network":
        """Put tensors of ``channels`` behind that there is, in other scales, and one in the same."""
        own = self.scaling
        made = self._scaling("j", self.dtype)
        parts = [self.last, *own]
        others = [
            (f"u{index}", count, self._scaling(f"u{index}", self.dtype))
            for index, count in enumerate(channels)
        ]
        for name, count, scaling in (*others, ("v", 3, made)):
            self.given[name] = self._bytes(self.dtype, (*self.shape[:3], count))
            parts += [name, *scaling]
        node = helper.make_node(
            "QLinearConcat", [*made, *parts], ["j"], domain="com.microsoft", axis=3
        )
        self.nodes.append(node)
        self.scaling = made
        self._make("j", (*self.shape[:3], self.shape[3] + sum(channels) + 3))
        return self

    def conv(
        self,
        filters: int,
        kernel: int = 1,
        stride: int = 1,
        pad: int = 0,
        step: int = 1,
        group: int = 1,
    ) -> "Network":
        _, height, width, channels = self.shape
        weights = (filters, channels // group, kernel, kernel)
        size = [(n + 2 * pad - (kernel - 1) * step - 1) // stride + 1 for n in (height, width)]
        operands = self._operands(weights, filters)
        name = f"y{len(self.nodes)}"
        made = self._scaling(name, self.dtype, float(np.sqrt(np.prod(weights[1:]))))
        bias = self._constant(self.random.integers(-999, 999, filters).astype(np.int32))
        self.nodes.append(
            helper.make_node(
                "QLinearConv",
                [self.last, *self.scaling, *operands, *made, bias],
                [name],
                domain="com.microsoft",
                channels_last=1,
                group=group,
                kernel_shape=[kernel] * 2,
                strides=[stride] * 2,
                pads=[pad] * 4,
                dilations=[step] * 2,
            )
        )
        self.scaling = made
        self._make(name, (1, *size, filters))
        return self

    def pool(self, kernel: int, stride: int, pad: int = 0) -> "Network":
        """Take the maxima of windows."""
        _, height, width, channels = self.shape
        size = [(n + 2 * pad - kernel) // stride + 1 for n in (height, width)]
        name = f"y{len(self.nodes)}"
        node = helper.make_node(
            "NhwcMaxPool",
            [self.last],
            [name],
            domain="com.microsoft",
            kernel_shape=[kernel] * 2,
            strides=[stride] * 2,
            pads=[pad] * 4,
        )
        self.nodes.append(node)
        self._make(name, (1, *size, channels))
        return self

    def table(self) -> "Network":
        """Look up each byte in a table."""
        held = self._constant(self._bytes(self.dtype, (256,)))
        name = f"y{len(self.nodes)}"
        self.nodes += [
            helper.make_node("Cast", [self.last], [f"{name}/numbers"], to=TensorProto.INT32),
            helper.make_node("Gather", [held, f"{name}/numbers"], [name]),
        ]
        self._make(name, self.shape)
        return self

    def product(self, filters: int, turned: bool = False) -> "Network":
        weights = (filters, self.shape[-1]) if turned else (self.shape[-1], filters)
        operands = self._operands(weights, filters)
        made = self._scaling("p", self.dtype, float(np.sqrt(self.shape[-1])))
        bias = self._constant(self.random.integers(-999, 999, filters).astype(np.int32))
        inputs = [self.last, *self.scaling, *operands, bias, *made]
        self.nodes.append(
            helper.make_node("QGemm", inputs, ["p"], domain="com.microsoft", transB=int(turned))
        )
        self.scaling = made
        self._make("p", (self.shape[0], filters))
        return self

    def plus(self, first: bool) -> "Network":
        """Add another tensor of the newest one's shape: it is the ``first`` operand, or the second."""
        self.given["z"] = self._bytes(self.dtype, self.shape)
        own, other = [self.last, *self.scaling], ["z", *self._scaling("z", self.dtype)]
        made = self._scaling("s", self.dtype)
        operands = [*other, *own] if first else [*own, *other]
        node = helper.make_node("QLinearAdd", [*operands, *made], ["s"], domain="com.microsoft")
        self.nodes.append(node)
        self.scaling = made
        self._make("s", self.shape)
        return self

    def average(self) -> "Network":
        made = self._scaling("a", self.dtype, 0.3)
        inputs = [self.last, *self.scaling, *made]
        self.nodes.append(
            helper.make_node(
                "QLinearGlobalAveragePool", inputs, ["a"], domain="com.microsoft", channels_last=1
            )
        )
        self._make("a", (1, 1, 1, self.shape[-1]))
        return self

    def model(self) -> onnx.ModelProto:
        inputs = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for name, a in self.given.items()
        ]
        kind = TensorProto.UINT8 if self.dtype == "uint8" else TensorProto.INT8
        outputs = [helper.make_tensor_value_info(self.last, kind, self.shape)]
        held = [numpy_helper.from_array(array, name) for name, array in self.constants.items()]
        graph = helper.make_graph(self.nodes, "g", inputs, outputs, held)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9)

    def serialised(self) -> bytes:
        return bytes(self.model().SerializeToString(deterministic=True))

    def graph(self) -> Graph:
        """Return it as the compiler has it."""
        graph = graph_of(self.model())
        return replace(graph, values={**graph.values, **self.values})

    def found(self) -> FoundTask | None:
        """Return what the compiler says that all nodes compute."""
        return whole_task(self.graph(), range(len(self.nodes)), tuple(self.given))

    def task(self) -> Quantised:
        """Return it as a pack has it."""
        found = self.found()
        assert found is not None
        places = dict(zip(self.constants, constant_offsets(self.serialised()), strict=True))
        names = found.names[len(self.given) :]
        return replace(found.task, constants=tuple(places[name] for name in names))

    def expected(self) -> NDArray[Any]:
        """Return what ONNX Runtime makes of it."""
        return run_session(open_piece(self.serialised()), self.given)[self.last]

    def computed(
        self, threads: int = 1, workspace: int = 12 << 10, over: str | None = None
    ) -> NDArray[Any]:
        """Return what the native library makes of it, in memory of its own or ``over`` an input."""
        found = self.task()
        made = np.zeros(self.shape, self.dtype) if over is None else self.given[over]
        held, constants = constants_in(self.serialised(), found, len(self.given))
        places = (*(array.ctypes.data for array in self.given.values()), *constants)
        if isinstance(found, QuantisedAverage):
            bind_average(found, places, made.ctypes.data, held, library())()
        else:
            task = fitted(found, library(), threads, workspace)
            bound = BoundTask(task, lambda task: _run(library(), task), held)
            source = [*self.given.values()][found.source]
            bind_task(found, source, places, made.ctypes.data, bound, workspace)()
        return made

    def _make(self, name: str, shape: Sequence[int]) -> None:
        """Say that the newest node makes bytes ``name``."""
        self.last, self.shape = name, tuple(shape)
        self.values[name] = Array(dtype=self.dtype, shape=self.shape)

    def _bytes(self, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
        limits = np.iinfo(dtype)
        return self.random.integers(limits.min, limits.max + 1, shape).astype(dtype)

    def _scaling(self, name: str, dtype: str, factor: float = 1.0) -> tuple[str, str]:
        limits = np.iinfo(dtype)
        zero = self.random.integers(limits.min, limits.max + 1)
        scale = np.float32(self.random.uniform(0.01, 0.05) * factor)
        return self._constant(np.array(scale)), self._constant(np.array(zero, dtype))

    def _operands(self, shape: tuple[int, ...], filters: int) -> tuple[str, str, str]:
        """Return weights, scales and zero points; a scale for each filter where these are ``apart``."""
        held = self._bytes(self.weight_dtype, shape)
        if self.weight_dtype == "int8":
            held = np.maximum(held, np.int8(-self.largest_weight))
        weights = self._constant(held)
        count = (filters,) if self.apart else ()
        scales = self.random.uniform(0.002, 0.02, count).astype(np.float32)
        middle = 128 if self.weight_dtype == "uint8" else 0
        zeros = np.full(count, middle) + (self.random.integers(-9, 9, count) if self.zeros else 0)
        return (
            weights,
            self._constant(np.asarray(scales)),
            self._constant(np.asarray(zeros).astype(self.weight_dtype)),
        )

    def _constant(self, array: NDArray[Any]) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = array
        return name


@cache
def _jobs() -> JobSession:
    """Return what runs parts of tasks at once, on three threads."""
    jobs = JobSession(CpuDevice(3)._bind_chain)
    jobs.prepare()
    return jobs


def _run(library: Library, task: Any) -> None:
    if task.n_parts == 1:
        assert library.run_task(task)
    else:
        _jobs().run(library.hand_over, task)
        assert not task.failed
