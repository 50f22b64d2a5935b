"""Quantised networks, drawn: in every plan and twice in one engine they answer as ONNX Runtime does.

Memory holds NaN before each sweep, and steps in one launch give the bits of steps one by one.
"""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

from loader.errors import LoaderError
from models.compiler import CompileOptions, compile_onnx
from models.compiler.writing.write import write_optimised
from models.errors import OnnxError
from models.packs.pack import Pack, open_pack
from models.runtime.sessions import open_reference, run_session
from pipeline.devices.cpu import CpuDevice
from pipeline.execution.lane import Lane
from pipeline.execution.leases import OwnArena
from pipeline.execution.opened import opened
from pipeline.fitting.fit import fit
from pipeline.fitting.wanted import LEAST, Wanted
from pipeline.planning.joined_launches import apart, joined
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice, Plan, PlanError
from pipeline.program.prepare import prepare
from pipeline.program.program import Program
from pipeline.program.region_plan import RegionError
from pipeline.schedule.architectures import ARCHITECTURES
from tests.models.quantised_nets import Drawn, drawn
from tests.pipeline.writes import arena_weights

Arrays = Mapping[str, NDArray[Any]]

#: Threads, and whether the native library computes.
DEVICES = [(1, True), (1, False), (2, True), (2, False)]
# The least step of an output whose scale nothing tells: a 255th of its range.
_STEPS = 255
_FAR, _TIED = 2.01, 8.01
# A digit more or less, as sums in another order are off.
_NUDGED, _NUDGES = (1 + 1e-6, 1 - 1e-6), 2
_POISON = 0xFF


@dataclass
class _Compiled:
    """``references``: what ONNX Runtime answers to each of ``inputs``. ``steps``: of each output.

    ``far``: how many steps an answer may be off.
    """

    pack: Pack
    inputs: list[dict[str, NDArray[np.float32]]]
    references: list[list[Arrays]]
    steps: Mapping[str, float]
    far: float

    def off(self, one: Arrays, other: Arrays) -> float:
        """Return by how many steps two answers differ."""
        return max(_largest(one[name] - other[name]) / step for name, step in self.steps.items())

    def check(self, index: int, got: Arrays) -> None:
        """Hold an answer to input ``index`` against those of ONNX Runtime.

        Within ``far`` steps of one, and twice as much as they differ from each other.
        """
        first, *others = self.references[index]
        spread = max((self.off(first, other) for other in others), default=0.0)
        assert (
            min(self.off(got, reference) for reference in self.references[index])
            <= self.far + 2 * spread
        )


def _largest(difference: NDArray[Any]) -> float:
    return float(np.abs(difference).max()) if np.isfinite(difference).all() else np.inf


def _compiled(network: Drawn, folder: Path, seed: int) -> _Compiled:
    source = network.write(folder)
    inputs = [network.inputs(seed + 1000), network.inputs(seed + 2000)]
    references: list[list[Arrays]] = []
    steps: dict[str, float] = {}

    def accept(_pack: Path, reference: Path) -> None:
        references.extend(list(_answers(reference, item)) for item in inputs)
        steps.update(_steps_of(reference, references[0][0]))

    options = CompileOptions(
        accept=accept,
        chunk_bytes=(None, 1 << 10, 4 << 10)[seed % 3],
        preprocess=network.preprocess if network.by_compiler else None,
        calibrate=network.pictures if network.by_compiler else None,
    )
    pack = open_pack(compile_onnx(source, folder / "packs" / "m", options))
    return _Compiled(pack, inputs, references, steps, _far(network))


def _answers(file: Path, inputs: Arrays) -> Iterator[Arrays]:
    """Yield what ONNX Runtime answers: optimised, where it takes that, and to the last digit's inputs."""
    plain = open_reference(file)
    yield run_session(plain, inputs)
    with suppress(OnnxError):
        yield run_session(open_reference(write_optimised(file)), inputs)
    for seed in range(_NUDGES):
        signs = np.random.default_rng(seed)
        yield run_session(
            plain,
            {
                name: array * signs.choice(_NUDGED, array.shape).astype(array.dtype)
                for name, array in inputs.items()
            },
        )


def _steps_of(file: Path, answer: Arrays) -> dict[str, float]:
    graph = onnx.load(file).graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    producers = {name: node for node in graph.node for name in node.output}
    steps = {}
    for name, array in answer.items():
        steps[name] = (max(float(array.max()), 0) - min(float(array.min()), 0)) / _STEPS
        producer = producers[name]
        if producer.op_type == "DequantizeLinear" and producer.input[1] in constants:
            scale = numpy_helper.to_array(constants[producer.input[1]])
            steps[name] = max(steps[name], float(scale.max()))
    return steps


def _plans(program: Program) -> Iterator[Plan]:
    min_plan = fit(program, ARCHITECTURES["2s"], LEAST).plan
    yield min_plan
    for name in ("pre", "seq", "sync", "async", "2s"):
        yield make_plan(program, ARCHITECTURES[name])
    every = tuple(range(0, len(program.spans), 2))
    choices = {
        "2s": Choice(ring_bytes=64 << 10, read_bytes=32 << 10),
        "auto": Choice(ring_bytes=64 << 10, resident=every, ahead="tail"),
    }
    for name, choice in choices.items():
        yield make_plan(program, ARCHITECTURES[name], choice=choice)
    yield make_plan(program, ARCHITECTURES["auto"], choice=Choice(ring_bytes=128 << 10, lanes=3))
    for factor in (1.02, 1.2):  # some of them on rows
        constraints = Wanted(total_bytes=int(min_plan.total_bytes * factor))
        with suppress(PlanError, RegionError, LoaderError):
            yield fit(program, ARCHITECTURES["auto"], constraints).plan


def _run_plan(
    program: Program, plan: Plan, device: CpuDevice, inputs: list[dict[str, NDArray[np.float32]]]
) -> list[Arrays]:
    """Return the answers to all ``inputs``, twice in one engine; all lanes give the same."""
    arena = OwnArena(device, plan.arena_bytes)
    answers: list[Arrays] = []
    with opened(program, plan, device, lease=lambda: arena) as engine:
        for item in (*inputs, *inputs):
            if not arena_weights(plan):
                arena.memory.write(0, np.full(plan.arena_bytes, _POISON, np.uint8))
            got = engine.run_lanes([Lane(item) for _ in range(plan.choice.lanes)])
            for answer in got:
                if isinstance(answer, Exception):
                    raise answer
                answers += [{name: np.array(array) for name, array in answer[0].items()}]
    batch_size = plan.choice.lanes
    for first in range(0, len(answers), batch_size):
        for other in answers[first : first + batch_size]:
            assert _bits(other) == _bits(answers[first])
    return answers[::batch_size]


def _bits(answer: Arrays) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in answer.items()}


def _check_plan(program: Program, plan: Plan, device: CpuDevice, net: _Compiled) -> None:
    unfused = apart(plan)
    together = joined(program, unfused)
    answers = _run_plan(program, unfused, device, net.inputs)
    for index, got in enumerate(answers):
        net.check(index % len(net.inputs), got)
        assert _bits(got) == _bits(answers[index % len(net.inputs)])
    if together.runs:
        for one, other in zip(
            answers, _run_plan(program, together, device, net.inputs), strict=True
        ):
            assert _bits(one) == _bits(other)


def _far(network: Drawn) -> float:
    """Return the most steps that an answer may be off.

    ONNX Runtime's kernels of integers and its floats round means and probabilities to either side of a
    half, and layers behind them make several steps of one; which it takes depends on what is around.
    """
    return _TIED if network.has_ties else _FAR


def test_quantised_networks_answer_equally_in_one_launch_and_many(tmp_path: Path) -> None:
    """One so large that operators write over what they read, which failed."""
    network = drawn(1)
    net = _compiled(network, tmp_path, 1)
    with closing(CpuDevice(1, native=False)) as device:
        program = prepare(net.pack, device)
        plan = make_plan(program, ARCHITECTURES["pre"])
        assert joined(program, plan).runs
        _check_plan(program, plan, device, net)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(30))
def test_quantised_networks_answer_as_onnx_runtime_in_every_plan(block: int) -> None:
    """Three hundred of them, in parts that take seconds."""
    for seed in range(10 * block, 10 * block + 10):
        network = drawn(seed)
        with tempfile.TemporaryDirectory() as folder:
            net = _compiled(network, Path(folder), seed)
            for threads, native in DEVICES:
                with closing(CpuDevice(threads, native=native)) as device:
                    program = prepare(net.pack, device)
                    for plan in _plans(program):
                        _check_plan(program, plan, device, net)
