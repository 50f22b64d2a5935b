"""Compile graphs at random, compare with ONNX Runtime: ``python -m tests.fuzz.network [seconds]``.

Each example (tests/fuzz/graphs.py) is compiled, half of them without the compiler's own check, and run
through the smallest ring. Pack and plain ONNX Runtime must give the same answer, or both must refuse.
``--examples N`` runs N of them, however long that takes.
"""

import random
import shutil
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from loader.errors import LoaderError
from models.compiler import CompileOptions, compile_onnx
from models.errors import ModelError
from models.graphs.nodes import reads, subgraphs
from models.packs.pack import open_pack, read_pack
from models.runtime.sessions import SessionError, open_session, run_session, session_options
from pipeline.checking.check import Reference, check_pack
from pipeline.checking.trials import Trials
from pipeline.devices.base import DeviceError
from pipeline.devices.cpu import CpuDevice
from pipeline.execution.errors import EngineError
from tests.fuzz.graph_nodes import KINDS, unary
from tests.fuzz.graphs import Case, Feeds, Scope, Shape, Value, listed_weight, port
from tests.fuzz.pack import chosen_run, run_examples
from tests.models.streamed import streamed

Outputs = dict[str, NDArray[Any]]

# What no protocol can describe is refused, though ONNX Runtime answers. A body that uses an outer name
# again is refused, as the standard says; ONNX Runtime does so or not, depending on the order of nodes.
# Where an input decides how large a tensor becomes, ONNX Runtime takes as much memory as it says.
_OTHERWISE = (
    *("has a rank that is known only at run time", "single static assignment"),
    "so no memory can be planned",
)
_REFUSALS = (ModelError, EngineError, DeviceError, LoaderError)


def draw_case(rng: random.Random) -> Case:
    """Return a model of some nodes, with inputs for it."""
    scope = Scope(rng, np.random.default_rng(rng.randrange(1 << 30)))
    scope.wrong = rng.choice((0.0, 0.0, 0.03, 0.1))
    inputs = [Value(scope.name(), _input_shape(rng)) for _ in range(rng.choice((1, 1, 1, 2)))]
    scope.values = list(inputs)
    kinds, often = zip(*KINDS, strict=True)
    for _ in range(rng.randint(1, 9)):
        rng.choices(kinds, often)[0](scope)
    if not scope.nodes:
        unary(scope)
    declared, batch, shapes = _declared(rng, inputs)
    version = rng.choice((3, 4, 7, 8, 10, 13))
    if version < 4:  # there every initializer is an input, and bodies have none
        scope.optional = [listed_weight(tensor) for tensor in scope.weights]
        version = 4 if any(any(subgraphs(node)) for node in scope.nodes) else version
    outputs = _outputs(rng, scope, inputs)
    model = helper.make_model(
        helper.make_graph(
            _live(scope.nodes, outputs),
            "drawn",
            [*(port(name, "float32", dims) for name, dims in declared.items()), *scope.optional],
            [port(name, "float32", None) for name in outputs],
            scope.weights,
        ),
        opset_imports=[helper.make_opsetid("", rng.choice((13, 17)))],
        ir_version=version,
    )
    feeds = {value.name: scope.numbers.standard_normal(value.shape, np.float32) for value in inputs}
    return Case(model, batch, shapes, _with_overrides(rng, scope, feeds), scope.quantised)


def _input_shape(rng: random.Random) -> Shape:
    batch = rng.choice((1, 1, 1, 2, 3))
    if rng.random() < 0.75:
        return (batch, rng.choice((1, 3, 8, 16)), rng.choice((1, 4, 6, 9)), rng.choice((2, 6, 7)))
    return (batch, *(rng.choice((1, 5, 12, 64)) for _ in range(rng.choice((0, 1, 1, 2)))))


def _declared(
    rng: random.Random, inputs: list[Value]
) -> tuple[dict[str, list[int | str | None]], int | None, dict[str, Shape]]:
    """Return what the file says of its inputs, and the batch and shapes that make it ``inputs`` again."""
    declared: dict[str, list[int | str | None]] = {v.name: list(v.shape) for v in inputs}
    shapes: dict[str, Shape] = {}
    batch = None
    way = rng.choice(("fixed", "fixed", "batch", "dynamic", "other"))
    first = inputs[0]
    if way == "batch" and len({value.shape[0] for value in inputs}) == 1:
        batch = first.shape[0]
        for dims in declared.values():
            dims[0] = "n"
    elif way == "dynamic":
        axis = rng.randrange(len(first.shape))
        declared[first.name][axis] = "d"
        shapes[first.name] = first.shape
    elif way == "other":  # --shape replaces what the file says
        declared[first.name][0] = first.shape[0] + 1
        shapes[first.name] = first.shape
    return declared, batch, shapes


def _outputs(rng: random.Random, scope: Scope, inputs: list[Value]) -> list[str]:
    made = [value.name for value in scope.values if value not in inputs]
    some = rng.sample(made, min(len(made), rng.choice((0, 0, 1, 2))))
    last = made[-1:] or [inputs[0].name]
    return list(dict.fromkeys([*some, *last]))


def _live(nodes: list[onnx.NodeProto], outputs: list[str]) -> list[onnx.NodeProto]:
    """Return the nodes that an output depends on: others fail in ONNX Runtime and are not in packs."""
    wanted, kept = set(outputs), []
    for node in reversed(nodes):
        if wanted.intersection(node.output):
            kept.append(node)
            wanted.update(reads(node))
    return kept[::-1] or nodes


def _with_overrides(rng: random.Random, scope: Scope, feeds: Feeds) -> Feeds:
    """Give half of the inputs with a default, floats only: others may be shapes."""
    held = {tensor.name: tensor for tensor in scope.weights}
    for value in scope.optional:
        array = numpy_helper.to_array(held[value.name])
        if array.dtype == np.float32 and rng.random() < 0.5:
            feeds[value.name] = np.asarray(array * np.float32(0.5))
    return feeds


def expected(case: Case, path: Path) -> Outputs | str:
    """Return what plain ONNX Runtime answers, or why it refuses."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    for value in model.graph.input:
        if value.name in case.shapes:
            del value.type.tensor_type.shape.dim[:]
            for length in case.shapes[value.name]:
                value.type.tensor_type.shape.dim.add().dim_value = length
    path.write_bytes(model.SerializeToString())
    try:
        return run_session(open_session(str(path), session_options(optimise=True)), case.feeds)
    except SessionError as exc:
        return str(exc)


def answered(case: Case, folder: Path, checked: bool) -> Outputs | str:
    """Return what the pack of ``case`` answers, or why compiling or running it was refused."""
    source = folder / "drawn.onnx"
    source.write_bytes(case.model.SerializeToString())

    def accept(pack: Path, reference: Path) -> None:
        opened = read_pack(pack)
        for threads in (None, 1):
            with closing(CpuDevice(threads)) as device:
                trials = Trials(opened, device, "full", once=threads == 1)
                check_pack(opened, Reference(reference, source), trials)

    options = CompileOptions(
        batch=case.batch,
        shapes=case.shapes,
        chunk_bytes=8192,
        force=True,
        accept=accept if checked else None,
    )
    try:
        pack = open_pack(compile_onnx(source, folder / "pack" / "drawn", options))
        inputs = {port.name for port in pack.manifest.inputs}
        constant = set(case.feeds) - inputs
        if constant:  # announced: weights that are listed as inputs
            return ""
        return streamed(pack, case.feeds)
    except _REFUSALS as exc:
        message = str(exc)
        if not message.isprintable() or "please report" in message:
            raise AssertionError(f"a refusal that should not be: {message!r}") from exc
        return message


def compare(got: Outputs | str, wanted: Outputs | str, quantised: bool) -> bool:
    """Check that both are the same or both are refusals; return whether there was an answer."""
    if got == "" or any(words in each for words in _OTHERWISE for each in (got, wanted)):
        return False
    if isinstance(got, str) or isinstance(wanted, str):
        assert isinstance(got, str), f"answers where ONNX Runtime refuses: {wanted}"
        assert isinstance(wanted, str), f"refuses where ONNX Runtime answers: {got}"
        return False
    assert list(got) == list(wanted)
    for name, array in wanted.items():
        assert (got[name].shape, got[name].dtype) == (array.shape, array.dtype), name
        finite = np.isfinite(array)
        largest = np.abs(array[finite]).max(initial=1e-2)
        limit = (0.1 if quantised else 1e-4) * largest
        np.testing.assert_array_equal(np.isfinite(got[name]), finite, err_msg=name)
        off = np.abs(got[name][finite] - array[finite]).max(initial=0)
        assert off <= limit, f"{name}: {off} beside {largest}"
    return True


def attempt(rng: random.Random, folder: Path) -> bool:
    """Draw, compile, run, compare; return whether there was an answer."""
    case = draw_case(rng)
    checked = rng.random() < 0.5
    shutil.rmtree(folder / "pack", ignore_errors=True)
    wanted = expected(case, folder / "plain.onnx")
    return compare(answered(case, folder, checked), wanted, case.quantised)


def main(arguments: list[str]) -> int:
    seconds, first = chosen_run(arguments)
    with tempfile.TemporaryDirectory() as name:
        return run_examples(
            lambda number: attempt(random.Random(number), Path(name)), seconds, first
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
