"""ONNX Runtime's table is what ONNX Runtime says of itself."""

from collections import defaultdict
from typing import Any

import onnxruntime.capi.onnxruntime_pybind11_state as onnxruntime

from models.network.catalogue import OPERATORS
from models.network.names import Op, named
from models.runtime.kernels import KERNELS

PROVIDER = "CPUExecutionProvider"
# What kernels of other names for the same types are called.
TYPES = {"float": "float32", "double": "float64"}
#: Element types that rows speak of.
NUMERIC = {"float32", "float64", "int8", "uint8", "int32", "int64", "bool"}


def registered() -> dict[str, set[str]]:
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
        types[name] |= {TYPES.get(element, element) for element in elements}
    return types


def test_there_is_a_row_for_each_kernel_that_onnxruntime_has_registered_and_for_no_other() -> None:
    assert KERNELS.keys() == registered().keys()


def test_kernels_take_the_types_that_onnxruntime_says() -> None:
    types_of = registered()
    # These register constraints by names that are not those of their schemas' inputs.
    unnamed = {name for name, types in types_of.items() if not types & NUMERIC}
    rows = {name: set(kernel.types) for name, kernel in KERNELS.items() if name not in unnamed}
    assert rows == {name: types_of[name] & NUMERIC for name in rows}
    assert len(unnamed) <= 7


def test_rows_are_in_order_and_their_operands_exist() -> None:
    assert [*KERNELS] == sorted(KERNELS, key=lambda name: (name.count("."), name))
    for name, kernel in KERNELS.items():
        assert kernel.operator is Op(name)
        assert all(OPERATORS[name].operand(position) for position in kernel.writes_over)
