"""Graphs of layers on bytes, and whether C gives the bits of ONNX Runtime for them."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from models.compiler.for_c import GraphForC
from tests.models.nets import answers, inputs_for
from tests.pipeline.export_c.compiled import Compiled

MICROSOFT = "com.microsoft"


class Graph:
    """Nodes on bytes of one type, each with a scale and a zero point of its own."""

    def __init__(self, dtype: str, seed: int) -> None:
        self.dtype = dtype
        self.generator = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []
        self.scales: dict[str, tuple[str, ...]] = {}

    def constant(self, array: Any) -> str:
        name = f"k{len(self.tensors)}"
        self.tensors.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def scaled(self, name: str, scale: float | None = None) -> tuple[str, ...]:
        """The scale and the zero point of ``name``, drawn."""
        limits = np.iinfo(self.dtype)
        middle = (limits.min + limits.max) // 2
        zero = self.generator.integers(middle - 9, middle + 9)
        found = np.float32(scale or self.generator.uniform(0.01, 0.06))
        self.scales[name] = self.constant(found), self.constant(np.array(zero, self.dtype))
        return self.scales[name]

    def add(
        self, operator: str, made: str, *inputs: str, domain: str = "", **attributes: Any
    ) -> str:
        self.nodes.append(helper.make_node(operator, inputs, [made], domain=domain, **attributes))
        return made

    def weights(self, shape: tuple[int, ...], filters: int) -> tuple[str, str, str]:
        values = self.generator.integers(-64, 65, shape).astype(np.int8)
        scales = self.generator.uniform(0.001, 0.01, filters).astype(np.float32)
        return (
            self.constant(values),
            self.constant(scales),
            self.constant(np.zeros(filters, np.int8)),
        )

    def bias(self, filters: int | tuple[int, ...]) -> str:
        return self.constant(self.generator.integers(-900, 900, filters).astype(np.int32))

    def convolution(
        self, source: str, made: str, shape: tuple[int, ...], bias: bool = True, **attributes: Any
    ) -> str:
        given = (*self.scales[source], *self.weights(shape, shape[0]), *self.scaled(made))
        last = (self.bias(shape[0]),) if bias else ()
        return self.add("QLinearConv", made, source, *given, *last, **attributes)

    def model(self, shape: tuple[int, ...], outputs: list[str], opset: int = 17) -> onnx.ModelProto:
        """The graph from the float input x to ``outputs`` as floats."""
        for name in outputs:
            self.add("DequantizeLinear", f"{name}_out", name, *self.scales[name])
        port = helper.make_tensor_value_info
        results = [helper.make_empty_tensor_value_info(f"{name}_out") for name in outputs]
        for result in results:
            result.type.tensor_type.elem_type = TensorProto.FLOAT
        graph = helper.make_graph(
            self.nodes, "g", [port("x", TensorProto.FLOAT, shape)], results, self.tensors
        )
        opsets = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9)

    def quantized(self, made: str = "q") -> str:
        return self.add("QuantizeLinear", made, "x", *self.scaled(made))


def same_bits(graph: GraphForC, folder: Path, shape: tuple[int, ...], **options: Any) -> Compiled:
    compiled = Compiled.of(graph, folder / "c", **options)
    inputs: dict[str, NDArray[Any]] = {"x": 2 * inputs_for({"x": shape})["x"]}
    status, outputs = compiled.run(inputs)
    assert status == 0
    for name, expected in answers(graph.written(), inputs, optimise=True).items():
        np.testing.assert_array_equal(outputs[name], expected, err_msg=name)
    return compiled
