"""The catalogue is what ONNX and ONNX Runtime say of their operators, and has each of them once."""

from typing import Any

import numpy as np
import onnx
import onnxruntime.capi.onnxruntime_pybind11_state as onnxruntime
from onnx.defs import OpSchema

from models.network.catalogue import OPERATORS, OperatorRecord, record_of
from models.network.names import Op, named, op_of

#: The operator sets of ONNX that have what was left out since.
OLD = {"Upsample": 9}
RANDOM = np.random.default_rng(0)


def schemas() -> dict[str, Any]:
    newest: dict[str, Any] = {}
    for schema in onnxruntime.get_all_operator_schema():
        name = named(schema.domain, schema.name)
        if name not in newest or newest[name].since_version < schema.since_version:
            newest[name] = schema
    return newest


def schema_of(record: OperatorRecord) -> OpSchema:
    return onnx.defs.get_schema(record.name, OLD.get(record.name, onnx.defs.onnx_opset_version()))


def plain() -> list[OperatorRecord]:
    """Return the operators of ONNX."""
    return [record for name, record in OPERATORS.items() if name.isalnum()]


def test_each_operator_has_one_record() -> None:
    assert set(OPERATORS) == set(Op) - {Op.Unknown}
    assert all(OPERATORS[record.of].of is record.of for record in OPERATORS.values())


def test_an_operator_is_named_by_its_domain_and_type() -> None:
    node = onnx.helper.make_node("FusedConv", [], [], domain="com.microsoft")
    assert op_of(node) == Op.FusedConv
    assert all(named(op.domain, op.op_type) == op for op in Op)
    assert record_of(op_of(node)) is OPERATORS[Op.FusedConv]
    assert record_of("com.example.Conv") is None


def test_operands_are_those_of_onnx() -> None:
    for record in plain():
        inputs = schema_of(record).inputs
        assert len(record.operands) == len(inputs) or record.name in (Op.Slice, Op.Upsample), record
        assert bool(record.variadic) == any(
            item.option == OpSchema.FormalParameterOption.Variadic for item in inputs
        ), record.name


def test_operands_are_those_of_onnxruntime() -> None:
    listed = schemas()
    for record in OPERATORS.values():
        if "." in record.name and not record.variadic:
            assert len(record.operands) == len(listed[record.name].inputs), record.name


def test_defaults_are_those_of_onnx() -> None:
    for record in plain():
        attributes = schema_of(record).attributes
        for name, value in record.attributes.items():
            if (record.name, name) == (Op.Mish, "alpha"):
                continue  # of Mish of -x, which the compiler writes
            assert name in attributes, f"{record.name} has no attribute {name}"
            default = onnx.helper.get_attribute_value(attributes[name].default_value)
            expected = default.decode() if isinstance(default, bytes) else default
            assert np.isclose(value, expected) if isinstance(value, float) else value == expected, (
                f"{record.name}: {name}"
            )


def test_functions_keep_the_order_of_numbers_where_they_say_so() -> None:
    x = np.sort(RANDOM.standard_normal(1000) * 4)
    for record in OPERATORS.values():
        if record.meaning is None or record.keeps_order == "no" or record.name == Op.Clip:
            continue
        positive = np.abs(x)[np.abs(x).argsort()] + 1e-3
        parameters = [value for value in record.attributes.values() if isinstance(value, float)]
        y = record.meaning(positive if record.name in (Op.Log, Op.Sqrt) else x, *parameters)
        assert (np.diff(y) >= -1e-12).all(), record.name
