"""Runs of a new pack: one request has one answer, whatever was in memory and in whichever launches."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from models.compiler import CompileOptions
from models.errors import CompileError
from models.packs.pack import Pack
from pipeline.checking.check import Reference, check_pack
from pipeline.checking.compare import difference
from pipeline.checking.comparison import Tolerance
from pipeline.checking.trials import TrialError, Trials
from pipeline.devices.base import Kernel, Launch
from pipeline.devices.cpu import CpuDevice
from pipeline.devices.device_memory import Memory, Use
from pipeline.fitting.fit import fit
from pipeline.fitting.wanted import LEAST
from pipeline.program.prepare import Abilities, prepare
from pipeline.schedule.architectures import ARCHITECTURES
from tests.models.nets import parsed, written
from tests.models.streamed import compiled

#: Of the ring, and of weights that stay in memory.
WeightBytes = tuple[int, int]
SAME = Tolerance(1e-5)
# Libraries' pages, and answers.
_OTHER_BYTES = (16 << 20) + 4096


class _Altered(Kernel):
    """A kernel whose launches are ``altered``, with what they write."""

    def __init__(
        self, kernel: Kernel, altered: Callable[[Launch, Sequence[NDArray[Any]]], Launch]
    ) -> None:
        self._kernel = kernel
        self._altered = altered

    def bind(
        self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Memory | None = None
    ) -> Launch:
        return self._altered(self._kernel.bind(inputs, outputs, scratch), outputs)


class _Device(CpuDevice):
    """Computes with ONNX Runtime; launches are ``altered``.

    ``weight_bytes``: of the last engine, by which its plan is recognised.
    """

    def __init__(
        self, altered: Callable[[Launch, Sequence[NDArray[Any]]], Launch], threads: int = 1
    ) -> None:
        super().__init__(threads, native=False)
        self._altered = altered
        self._allocated = [0, 0]
        self.weight_bytes: WeightBytes = (0, 0)

    def load(self, graph: bytes) -> Kernel:
        return _Altered(super().load(graph), self._altered)

    def abilities(self) -> Abilities:
        return replace(super().abilities(), joins=lambda graph: False)

    def allocate(self, use: Use, n_bytes: int, slots: int = 1) -> Memory:
        if use == "scratch":  # after the weights
            self.weight_bytes = self._allocated[-2], self._allocated[-1]
        self._allocated.append(n_bytes)
        return super().allocate(use, n_bytes, slots)


class _Faulty(_Device):
    """Computes otherwise in the plan with ``wrong`` bytes of weights alone; ``plans``: all that it ran."""

    def __init__(self, threads: int, wrong: WeightBytes | None) -> None:
        super().__init__(self._multiplied, threads)
        self._wrong = wrong
        self.plans: list[WeightBytes] = []

    def _multiplied(self, launch: Launch, outputs: Sequence[NDArray[Any]]) -> Launch:
        def launched() -> None:
            launch()
            if self.weight_bytes not in self.plans:
                self.plans.append(self.weight_bytes)
            if self.weight_bytes == self._wrong:
                np.multiply(outputs[0], 1.01, outputs[0])

        return launched


class _Reordering(CpuDevice):
    """Runs the pieces of a launch from the last to the first."""

    def __init__(self) -> None:
        super().__init__(1, native=False)

    def join(self, graphs: Sequence[bytes]) -> Kernel:
        return _Backwards([self.load(graph) for graph in graphs])


class _Backwards(Kernel):
    def __init__(self, kernels: Sequence[Any]) -> None:
        self._kernels = kernels

    def bind(
        self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Memory | None = None
    ) -> Launch:
        read, written = list(inputs), list(outputs)
        launches = []
        for kernel in self._kernels:
            counts = len(kernel.inputs), len(kernel.outputs)
            launches.append(kernel.bind(read[: counts[0]], written[: counts[1]]))
            read, written = read[counts[0] :], written[counts[1] :]

        def launch() -> None:
            for bound in reversed(launches):
                bound()

        return launch


def _image(pack: Pack) -> dict[str, NDArray[np.float32]]:
    (port,) = pack.manifest.inputs
    return {port.name: np.random.default_rng(1).standard_normal(port.shape, np.float32)}


@pytest.fixture
def device() -> Iterator[CpuDevice]:
    with closing(CpuDevice(1, native=False)) as cpu:
        yield cpu


def test_a_sound_pack_has_one_answer(tiny_pack: Pack, device: CpuDevice) -> None:
    trials = Trials(tiny_pack, device, "full")
    answers = list(trials.answers(_image(tiny_pack), SAME))
    assert [answer.setting.threads for answer in answers] == [1] * 3
    assert len({str(answer.setting) for answer in answers}) == 3
    assert trials.notes == []
    once = trials.answer(_image(tiny_pack))
    for answer in answers:
        assert all(np.isfinite(array).all() for array in answer.outputs.values())
        assert not difference(answer.outputs, once, SAME)


def test_a_quick_check_runs_two_plans(tiny_pack: Pack, device: CpuDevice) -> None:
    trials = Trials(tiny_pack, device, "quick")
    assert [answer.setting for answer in trials.answers(_image(tiny_pack), SAME)] == [
        ("the smallest plan", 1),
        ("all weights in memory", 1),
    ]


def test_a_fault_in_one_plan_with_one_number_of_threads_is_refused_and_named(
    tmp_path: Path,
) -> None:
    """Six devices, of which each computes otherwise in one setting alone."""
    model = parsed(
        """g (float[1,256] x) => (float y) {
            a = Gemm<transB=1>(x, u)
            b = Gemm<transB=1>(a, v)
            y = Gemm<transB=1>(b, w)
        }""",
        dict.fromkeys("uvw", (256, 256)),
    )
    source = written(model, tmp_path / "m.onnx")
    pack = compiled(source, tmp_path, CompileOptions(chunk_bytes=1 << 16))
    reference = Reference(source, Path("m.onnx"))

    def refusal(wrong: WeightBytes | None, threads: int) -> tuple[str, list[WeightBytes]]:
        with (
            closing(_Faulty(2, wrong if threads == 2 else None)) as device,
            closing(_Faulty(1, wrong if threads == 1 else None)) as single,
        ):
            try:
                for tried in (device, single):
                    trials = Trials(pack, tried, "full", once=tried is single)
                    assert check_pack(pack, reference, trials) == []
            except CompileError as exc:
                return str(exc), device.plans
            return "", device.plans

    words, plans = refusal(None, 1)
    assert not words
    names = ("the smallest plan", "half of the memory", "all weights in memory")
    for plan, name in zip(plans, names, strict=True):
        for threads in (1, 2):
            words, _ = refusal(plan, threads)
            setting = f"with {name} and {threads} thread{'s' * (threads > 1)}"
            assert f"{setting}: output 'y' is off by" in words, words
            assert "\n" not in words


def test_inputs_of_any_rank_run_between(tmp_path: Path, device: CpuDevice) -> None:
    model = parsed("s (float x, float[2,3] v) => (float[2,3] y) { y = Mul(v, x) }")
    pack = compiled(written(model, tmp_path / "m.onnx"), tmp_path)
    inputs = {"x": np.array(2, np.float32), "v": np.arange(6, dtype=np.float32).reshape(2, 3)}
    for answer in Trials(pack, device, "full").answers(inputs, SAME):
        assert np.array_equal(answer.outputs["y"], 2 * inputs["v"])


def test_another_order_in_a_launch_is_another_answer(tiny_pack: Pack) -> None:
    with (
        closing(_Reordering()) as device,
        pytest.raises(TrialError, match="in one launch than one by one: output"),
    ):
        list(Trials(tiny_pack, device, "quick").answers(_image(tiny_pack), SAME))


def test_what_an_inference_leaves_does_not_change_the_next_answer(tiny_pack: Pack) -> None:
    count = 0

    def adding(launch: Launch, outputs: Sequence[NDArray[Any]]) -> Launch:
        def launched() -> None:
            nonlocal count
            launch()
            count += 1
            for output in outputs:
                np.add(output, count, output)

        return launched

    with closing(_Device(adding)) as device, pytest.raises(TrialError, match="runs again: output"):
        list(Trials(tiny_pack, device, "quick").answers(_image(tiny_pack), SAME))


def test_random_answers_are_not_compared_with_each_other(tiny_pack: Pack) -> None:
    with closing(_Reordering()) as device:
        results = list(Trials(tiny_pack, device, "quick").answers(_image(tiny_pack), SAME, "node"))
    assert len(results) == 2


def test_what_no_kernel_writes_is_nan_in_the_answer(tiny_pack: Pack) -> None:
    """In new memory it would be zero, and in every answer the same."""

    def skipping(launch: Launch, outputs: Sequence[NDArray[Any]]) -> Launch:
        def launched() -> None:
            before = outputs[-1].flat[-1]
            launch()
            outputs[-1].flat[-1] = before

        return launched

    with closing(_Device(skipping)) as device:
        answer = next(Trials(tiny_pack, device, "quick").answers(_image(tiny_pack), SAME))
    assert any(np.isnan(array).any() for array in answer.outputs.values())


def test_where_all_weights_do_not_fit_only_the_streamed_plan_runs(
    tiny_pack: Pack, device: CpuDevice
) -> None:
    program = prepare(tiny_pack, device)
    min_bytes = fit(program, ARCHITECTURES["2s"], LEAST).plan.total_bytes
    free = min_bytes + _OTHER_BYTES
    trials = Trials(tiny_pack, device, "full", free=lambda: free)
    assert len(list(trials.answers(_image(tiny_pack), SAME))) == 1
    notes = "; ".join(trials.notes)
    assert "with all weights in memory: that takes" in notes
    assert "with half of the memory: that takes" in notes
    with pytest.raises(MemoryError, match=r"takes .* are free"):
        Trials(tiny_pack, device, "quick", free=lambda: _OTHER_BYTES).answer(_image(tiny_pack))
