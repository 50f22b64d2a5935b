"""One node for each kernel on elements, with what it reads, for tests of what the table says of it."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime.capi.onnxruntime_pybind11_state as onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper

from models.graphs.nodes import new_node
from models.network.catalogue import OPERATORS
from models.network.names import Op, named
from models.runtime.kernels import KERNELS, KernelRow

#: Of conversions to the type that is as large.
_ATTRIBUTES: dict[Op, dict[str, Any]] = {Op.Mod: {"fmod": 1}, Op.Cast: {"to": TensorProto.INT32}}
PROVIDER = "CPUExecutionProvider"
#: Element types that are drawn, and what ONNX Runtime calls some of them.
_DRAWN = ("float32", "float64", "int8", "uint8", "int32", "int64", "bool")
_NAMES = {"float": "float32", "double": "float64"}
#: Those that kernels have and operator sets of ONNX not.
_UNTYPED = {(Op.Celu, "float64")}
#: Those of a kernel that registers them by a name which its schema does not have.
_UNNAMED: Mapping[str, set[str]] = {Op.Where: {"float32", "uint8", "int32", "int64"}}


def types_registered() -> dict[str, set[str]]:
    """Return the element types of the first operand of each kernel for CPUs, by operator."""
    schemas: dict[str, Any] = {}
    for schema in onnxruntime.get_all_operator_schema():
        name = named(schema.domain, schema.name)
        if name not in schemas or schemas[name].since_version < schema.since_version:
            schemas[name] = schema
    types: dict[str, set[str]] = defaultdict(set)
    for kernel in onnxruntime.get_all_opkernel_def():
        name = named(kernel.domain, kernel.op_name)
        if kernel.provider != PROVIDER or name not in OPERATORS:
            continue
        inputs = schemas[name].inputs
        texts = kernel.type_constraints.get(inputs[0].typeStr, []) if inputs else []
        fixed = {inputs[0].typeStr} if inputs and inputs[0].typeStr.startswith("tensor(") else set()
        elements = {text.removeprefix("tensor(").removesuffix(")") for text in (*texts, *fixed)}
        types[name] |= {_NAMES.get(element, element) for element in elements}
    return types


@dataclass(frozen=True)
class KernelNode:
    """A kernel on ``inputs``, by name, in the order of its operands."""

    kernel: KernelRow
    inputs: Mapping[str, NDArray[Any]]

    def model(self) -> bytes:
        ports = [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )
            for name, array in self.inputs.items()
        ]
        attributes = _ATTRIBUTES.get(self.kernel.operator, {})
        node = new_node(self.kernel.operator, [*self.inputs], ["y"], **attributes)
        graph = helper.make_graph([node], "node", ports, [onnx.ValueInfoProto(name="y")])
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        return bytes(model.SerializeToString())


def nodes_on_elements(count: int) -> Iterator[KernelNode]:
    """Yield a node of ``count`` elements for each kernel on elements, and each type that it has."""
    generator = np.random.default_rng(0)
    registered: Mapping[str, set[str]] = {**types_registered(), **_UNNAMED}
    for kernel in KERNELS.values():
        is_on_channels = kernel.operator == Op.BatchNormalization
        if OPERATORS[kernel.operator].access != "elementwise" or is_on_channels:
            continue
        types = registered[kernel.operator]
        for dtype in _DRAWN:
            if dtype in types and (kernel.operator, dtype) not in _UNTYPED:
                yield KernelNode(kernel, _inputs(kernel.operator, dtype, count, generator))


def _inputs(
    operator: Op, dtype: str, count: int, generator: np.random.Generator
) -> dict[str, NDArray[Any]]:
    record = OPERATORS[operator]
    inputs: dict[str, NDArray[Any]] = {}
    for position in range(3 if record.variadic else len(record.operands)):
        operand = record.operand(position)
        assert operand is not None
        array = _drawn(dtype, count, generator)
        if operand.role == "scale":
            array = np.array(0.05, np.float32)
        elif operand.role == "zero_point":
            array = np.array(0, np.uint8 if dtype == "float32" else dtype)
        elif operand.role == "parameter":
            array = _drawn("bool", count, generator)
            if operator == Op.Clip:
                array = np.array((0, 2)[position - 1], dtype)
        elif position and dtype.startswith(("int", "uint")):
            array = np.maximum(array, 1)  # divisors
        inputs[f"x{position}"] = array
    return inputs


def _drawn(dtype: str, count: int, generator: np.random.Generator) -> NDArray[Any]:
    if dtype == "bool":
        return generator.integers(0, 2, count).astype(np.bool_)
    if dtype.startswith("float"):
        return (generator.standard_normal(count) * 3).astype(dtype)
    return generator.integers(0, 9, count).astype(dtype)
