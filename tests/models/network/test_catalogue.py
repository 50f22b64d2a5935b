"""The catalogue is what ONNX and ONNX Runtime say of their operators, and has each of them once."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, get_args

import numpy as np
import onnx
import onnxruntime.capi.onnxruntime_pybind11_state as onnxruntime
import pytest
from onnx.defs import OpSchema

from models.network.activations import Activation, Kind
from models.network.catalogue import OPERATORS, OperatorRecord, read_operator, record_of
from models.network.fields import Array
from models.network.names import Op, named, op_of
from models.network.node import KnownTensors, Node, UnsuitedError
from models.network.records import NEWEST_DESCRIBED
from tests.oracle.functions import activate

#: The operator sets of ONNX that have what was left out since.
OLD = {"Upsample": 9}
#: Versions that run and that no record describes: of GroupNormalization, with a scale for each group.
UNREAD: Mapping[str, set[int]] = {Op.GroupNormalization: {18}}
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


def versions_of() -> dict[str, set[int]]:
    """Return the versions of each operator up to ``NEWEST_DESCRIBED``, ONNX Runtime's own included."""
    versions: dict[str, set[int]] = defaultdict(set)
    for schema in (
        *onnx.defs.get_all_schemas_with_history(),
        *onnxruntime.get_all_operator_schema(),
    ):
        if schema.since_version <= NEWEST_DESCRIBED and not schema.deprecated:
            versions[named(schema.domain, schema.name)].add(schema.since_version)
    return versions


def run_by_onnxruntime() -> dict[str, set[int]]:
    """Return those of them that ONNX Runtime has a kernel of, or that ONNX defines by other operators."""
    versions = versions_of()
    run: dict[str, set[int]] = defaultdict(set)
    for kernel in onnxruntime.get_all_opkernel_def():
        name, (first, last) = named(kernel.domain, kernel.op_name), kernel.version_range
        run[name] |= {version for version in versions[name] if first <= version <= last}
    schemas: Any = onnx.defs.get_all_schemas_with_history()
    for schema in schemas:
        if schema.has_function or schema.has_context_dependent_function:
            run[named(schema.domain, schema.name)].add(schema.since_version)
    return run


def test_all_versions_from_the_first_that_is_described_are_listed() -> None:
    standard = [
        item.since_version for item in onnxruntime.get_all_operator_schema() if not item.domain
    ]
    assert max(standard) <= NEWEST_DESCRIBED
    versions = versions_of()
    for record in OPERATORS.values():
        if record.name == Op.ByteTable:
            continue
        described = {version for version in versions[record.name] if record.describes(version)}
        assert record.versions == tuple(sorted(described)), record.name


def test_versions_that_no_record_describes_do_not_run() -> None:
    run = run_by_onnxruntime()
    for name, record in OPERATORS.items():
        assert run[name] - set(record.versions) == UNREAD.get(name, set()), name


def test_a_version_that_is_not_described_is_not_looked_into() -> None:
    tensor = Array(dtype="float32", shape=(4,))
    tensors = KnownTensors(lambda name: tensor, lambda name: None)
    for opset in (6, NEWEST_DESCRIBED):
        read_operator(Node(Op.Relu, ("x",), ("y",), opset=opset), tensors)
    for operator, opset in (
        (Op.Relu, 5),
        (Op.Relu, NEWEST_DESCRIBED + 1),
        (Op.GroupNormalization, 18),
    ):
        with pytest.raises(UnsuitedError, match=f"what it means in opset {opset} is not known"):
            read_operator(Node(operator, ("x", "x", "x"), ("y",), opset=opset), tensors)


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
        if record.function is None or record.keeps_order == "no" or record.name == Op.Clip:
            continue
        assert record.function in get_args(Kind)  # only functions of one number keep an order
        positive = np.abs(x)[np.abs(x).argsort()] + 1e-3
        parameters = [value for value in record.attributes.values() if isinstance(value, float)]
        function: Any = record.function
        y = activate(
            positive if record.name in (Op.Log, Op.Sqrt) else x, Activation(function, *parameters)
        )
        assert (np.diff(y) >= -1e-12).all(), record.name
