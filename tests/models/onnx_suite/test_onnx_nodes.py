"""The package onnx's own cases of operators, streamed: answered as expected, or refused with a reason.

How many are is said in docs/reference/limits.md.
"""

import itertools
import re
from collections import Counter
from collections.abc import Collection, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper
from onnx.backend.test.case.test_case import TestCase

from models.compiler import CompileOptions
from models.errors import CompileError, ModelError
from models.graphs.nodes import all_graphs, versions_of
from models.graphs.traits import read_traits
from models.network.catalogue import OPERATORS, record_of
from models.network.names import Op, op_of
from pipeline.devices.base import KernelError
from tests.examples import Failures
from tests.models.nets import answers
from tests.models.node_cases import node_cases
from tests.models.streamed import compiled, same, streamed

# What may become of a case, in the words of the page.

AS_EXPECTED = "as expected"
FIXED = "as expected, with inputs that decide sizes as constants"
ROUNDED = "as expected, rounded otherwise"
AS_WRITTEN = "as the standard's text says"
DRAWN = "drawn at random, of the expected shape"
#: How a refusal names its reason.
REFUSALS = {
    "refused: an element type that no request can carry": r"has type .*, which no request can carry; ",
    "refused: sequences and optional values": r"put '.*' is not a tensor$",
    "refused: ONNX Runtime has no kernel for it": (
        r"ONNX Runtime refuses it: |^layer '.*' \(\w+\): |cannot be measured: Error in execution: "
    ),
    "refused: scores behind a mask": r"where it masks, ONNX Runtime's scores .* are not -inf",
}

#: Where the answer is near to the expected one, by the name of a case: relative and absolute difference.
#: Mish has a form that is equal to 1e-6 of the largest number (models/compiler/optimising/rewrite.py), here
#: 10; two floats of 16 bits next to each other differ by 0.001.
NEAR = {"test_mish*": (0.0, 1e-5), "test_attention_4d_causal_fp16": (2e-3, 0.0)}
#: A length of a result that is rounded down: to the cases corners are aligned before, to the text after it.
OTHER = ("test_resize_downsample_scales_*_align_corners",)

Arrays = Mapping[str, NDArray[Any]]


def outcome(case: TestCase, folder: Path) -> str:
    """Return what becomes of ``case``.

    Raises:
        AssertionError: it is answered otherwise, or refused in another way than errors should be.
    """
    source, arguments, expected = written(case, folder)
    try:
        inputs, (outputs, *others) = with_sizes(source, arguments)
    except (ModelError, KernelError) as exc:
        return refusal(str(exc))
    if not read_traits(source).random:
        for other in others:
            same(other, outputs)
    near = next((both for name, both in NEAR.items() if fnmatch(case.name, name)), None)
    if near is not None:
        same(outputs, expected, *near)
        return ROUNDED
    if any(fnmatch(case.name, name) for name in OTHER):
        same(outputs, answers(source, inputs), case.rtol, case.atol)
        return AS_WRITTEN
    try:
        same(outputs, expected, case.rtol, case.atol)
    except AssertionError:
        if not read_traits(source).random:
            raise
        assert [array.shape for array in outputs.values()] == [
            array.shape for array in expected.values()
        ]
        return DRAWN
    return AS_EXPECTED if len(inputs) == len(arguments) else FIXED


def with_sizes(source: Path, inputs: Arrays) -> tuple[Arrays, list[Arrays]]:
    """Return the inputs of ``source`` that decide no size, and its answers; the others become constants.

    Raises as ``through_a_pack``.
    """
    try:
        return inputs, through_a_pack(source, inputs, "2s", "pre")
    except CompileError as exc:
        deciding = decided_by(str(exc))
        if not deciding:
            raise
    return with_sizes(source, without_constants(source, inputs, deciding))


def decided_by(message: str) -> frozenset[str]:
    """Return the inputs of which ``message`` says that they decide sizes; none: it says something else."""
    match = re.search(r"(?:made of|as often as) values of inputs? (.*?) (?:without|say)", message)
    return frozenset(re.findall(r"'(.*?)'", match[1])) if match else frozenset()


def without_constants(source: Path, inputs: Arrays, names: Collection[str]) -> Arrays:
    """Write ``names`` of ``inputs`` to ``source`` as constants; return the others."""
    model = onnx.load(source)
    ports = [port for port in model.graph.input if port.name not in names]
    del model.graph.input[:]
    model.graph.input.extend(ports)
    fixed = [numpy_helper.from_array(inputs[name], name) for name in sorted(names)]
    model.graph.initializer.extend(fixed)
    onnx.save(model, source)
    return {name: array for name, array in inputs.items() if name not in names}


def written(case: TestCase, folder: Path) -> tuple[Path, Arrays, Arrays]:
    """Return the file of ``case``, and inputs and answers, of which only tensors are there."""
    assert case.model is not None
    assert case.data_sets is not None
    source = folder / "m.onnx"
    source.write_bytes(case.model.SerializeToString())
    inputs, expected = case.data_sets[0]
    graph = case.model.graph
    return source, arrays(graph.input, inputs), arrays(graph.output, expected)


def through_a_pack(source: Path, inputs: Arrays, *architectures: str) -> list[Arrays]:
    """Return what a pack of ``source`` answers in the smallest plan of each of ``architectures``."""
    shapes = {name: array.shape for name, array in inputs.items() if array.shape}
    options = CompileOptions(shapes=shapes, force=True)
    pack = compiled(source, source.parent, options)
    return [streamed(pack, inputs, architecture) for architecture in architectures]


def arrays(ports: Collection[onnx.ValueInfoProto], values: Collection[Any]) -> Arrays:
    """Return those of ``values`` that are tensors, by the names of their ``ports``."""
    named = zip((port.name for port in ports), values, strict=True)
    return {
        name: numpy_helper.to_array(item)
        if isinstance(item, onnx.TensorProto)
        else np.asarray(item)
        for name, item in named
        if item is not None and not isinstance(item, list | dict)
    }


def refusal(message: str) -> str:
    """Return the kind of refusal that ``message`` is."""
    kind = next((kind for kind, text in REFUSALS.items() if re.search(text, message)), None)
    assert kind, f"no reason: {message}"
    assert message.isprintable(), repr(message)
    return kind


def is_described(case: TestCase) -> bool:
    """Return whether the catalogue has each operator of ``case``, in its version."""
    assert case.model is not None
    version = versions_of(case.model.opset_import).get("", 1)
    nodes = [node for graph in all_graphs(case.model.graph) for node in graph.node]
    records = [record_of(op_of(node)) for node in nodes]
    return all(record is not None and record.describes(version) for record in records)


# Some of them: of each operator that is looked into, or that may need a piece of its own, one.

#: Of pools onnx takes seconds to compute all its cases; many networks of ours have some. Random numbers are
#: never as expected.
_EXCLUDED = {"AveragePool", "LpPool", "MaxPool"} | {
    record.name for record in OPERATORS.values() if record.draws
}
_LOOKED_INTO = [
    str(record.name)
    for record in OPERATORS.values()
    if record.name.isalnum() and (record.read or record.access == "opaque")
    if record.name not in _EXCLUDED and record.name != Op.ByteTable
]


@pytest.mark.parametrize("operator", _LOOKED_INTO)
def test_an_operator_answers_as_expected(operator: str, tmp_path: Path) -> None:
    answered = (AS_EXPECTED, FIXED, ROUNDED)
    assert any(outcome(case, tmp_path) in answered for case in node_cases([operator]))


# All of them.

_PAGE = Path(__file__).parents[3] / "docs" / "reference" / "limits.md"
_ROW = re.compile(r"^\| (?P<kind>[^|]+) \| (?P<count>[\d,]+) \|$", re.MULTILINE)


def on_the_page() -> dict[str, int]:
    """Return how many cases the page says, by what becomes of them."""
    table = _PAGE.read_text().partition("\n## Operators\n")[2].partition("\n## ")[0]
    return {row["kind"]: int(row["count"].replace(",", "")) for row in _ROW.finditer(table)}


def test_the_page_has_what_may_become_of_cases() -> None:
    assert {*on_the_page()} == {AS_EXPECTED, FIXED, ROUNDED, AS_WRITTEN, DRAWN, *REFUSALS}
    assert sum(on_the_page().values()) > 1000


@pytest.mark.slow
def test_as_many_cases_are_answered_as_the_page_says(tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    with Failures() as failures:
        for case in filter(is_described, node_cases()):
            with failures.of(case.name):
                counts[outcome(case, tmp_path)] += 1
    assert counts == on_the_page()


@pytest.mark.slow
def test_operators_that_are_not_described_answer_as_in_onnx_runtime(tmp_path: Path) -> None:
    with Failures() as failures:
        for case in itertools.filterfalse(is_described, node_cases()):
            with failures.of(case.name):
                answered_as_in_onnx_runtime(case, tmp_path)


def answered_as_in_onnx_runtime(case: TestCase, folder: Path) -> None:
    source, inputs, _ = written(case, folder)
    try:
        (outputs,) = through_a_pack(source, inputs, "2s")
    except (ModelError, KernelError) as exc:
        refusal(str(exc))
    else:
        same(outputs, answers(source, inputs, optimise=True), case.rtol, case.atol)
