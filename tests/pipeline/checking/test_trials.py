"""Runs of a new pack: one request has one answer, whatever was in memory and in whichever launches."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from models.packs.pack import Pack
from pipeline.checking.trials import TrialError, Trials
from pipeline.devices.base import Kernel, Launch
from pipeline.devices.cpu import CpuDevice
from pipeline.devices.device_memory import Memory
from pipeline.fitting.fit import fit
from pipeline.fitting.wanted import LEAST
from pipeline.program.prepare import prepare
from pipeline.schedule.architectures import ARCHITECTURES
from tests.models.nets import parsed, written
from tests.models.streamed import compiled

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
    """Computes with ONNX Runtime; launches are ``altered``."""

    def __init__(self, altered: Callable[[Launch, Sequence[NDArray[Any]]], Launch]) -> None:
        super().__init__(1, native=False)
        self._altered = altered

    def load(self, graph: bytes) -> Kernel:
        return _Altered(super().load(graph), self._altered)


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
    trials = Trials(tiny_pack, device)
    answers = list(trials.answers(_image(tiny_pack)))
    assert len(answers) == 1
    assert all(np.isfinite(array).all() for array in answers[0].values())
    assert trials.notes == []
    once = trials.answer(_image(tiny_pack))
    assert all(np.array_equal(once[name], array) for name, array in answers[0].items())


def test_inputs_of_any_rank_run_between(tmp_path: Path, device: CpuDevice) -> None:
    model = parsed("s (float x, float[2,3] v) => (float[2,3] y) { y = Mul(v, x) }")
    pack = compiled(written(model, tmp_path / "m.onnx"), tmp_path)
    inputs = {"x": np.array(2, np.float32), "v": np.arange(6, dtype=np.float32).reshape(2, 3)}
    (answer,) = Trials(pack, device).answers(inputs)
    assert np.array_equal(answer["y"], 2 * inputs["v"])


def test_another_order_in_a_launch_is_another_answer(tiny_pack: Pack) -> None:
    with (
        closing(_Reordering()) as device,
        pytest.raises(TrialError, match="in one launch than one by one: output"),
    ):
        list(Trials(tiny_pack, device).answers(_image(tiny_pack)))


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
        list(Trials(tiny_pack, device).answers(_image(tiny_pack)))


def test_random_answers_are_not_compared_with_each_other(tiny_pack: Pack) -> None:
    with closing(_Reordering()) as device:
        results = list(Trials(tiny_pack, device, is_random=True).answers(_image(tiny_pack)))
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
        answer = next(Trials(tiny_pack, device).answers(_image(tiny_pack)))
    assert any(np.isnan(array).any() for array in answer.values())


def test_where_all_weights_do_not_fit_only_the_streamed_plan_runs(
    tiny_pack: Pack, device: CpuDevice
) -> None:
    program = prepare(tiny_pack, device)
    min_bytes = fit(program, ARCHITECTURES["2s"], LEAST).plan.total_bytes
    free = min_bytes + _OTHER_BYTES
    trials = Trials(tiny_pack, device, lambda: free)
    assert len(list(trials.answers(_image(tiny_pack)))) == 1
    (note,) = trials.notes
    assert "all weights in memory" in note
    with pytest.raises(MemoryError, match=r"takes .* are free"):
        Trials(tiny_pack, device, lambda: _OTHER_BYTES).answer(_image(tiny_pack))
