"""A loop whose rounds a request counts: it ends when nobody waits for it, and the next one is answered."""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import layerstream
from models.compiler import CompileOptions
from models.compiler.cutting.meter import Allocated, Meter
from models.packs.pack import Pack
from models.runtime.allocations import Tensor
from pipeline.devices.cpu import CpuDevice
from pipeline.execution.engine import Engine
from pipeline.execution.errors import CancelledError, DeadlineError
from pipeline.execution.lane import Lane
from pipeline.execution.opened import opened
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice
from pipeline.program.prepare import prepare
from pipeline.schedule.architectures import ARCHITECTURES
from tests.models.nets import parsed, written
from tests.models.streamed import compiled

ENDLESS = 10**15
LIMIT_SECONDS = 30.0


class Unmeasured(Meter):
    """Starts no process: what the loop allocates is no matter here."""

    def allocated(
        self, graph: bytes, inputs: Sequence[Tensor], outputs: Sequence[Tensor] | None
    ) -> Allocated:
        return Allocated(0, 0)


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    folder = tmp_path_factory.mktemp("loop")
    model = parsed(
        """loop (float[1,8] x, int64 n) => (float[1,8] y) {
            yes = Constant<value = bool {1}>()
            y = Loop(n, yes, x) < body = b (int64 i, bool go, float[1,8] s) => (bool again, float[1,8] t) {
                again = Identity(go)
                t = Add(s, x)
            } >
        }"""
    )
    source = written(model, folder / "loop.onnx")
    return compiled(source, folder, CompileOptions(meter=Unmeasured()))


@pytest.fixture
def engine(pack: Pack) -> Iterator[Engine]:
    device = CpuDevice()
    program = prepare(pack, device)
    plan = make_plan(program, ARCHITECTURES["2s"], choice=Choice(lanes=2))
    with opened(program, plan, device) as engine:
        yield engine
    device.close()


def rounds(count: int) -> dict[str, NDArray[Any]]:
    return {"x": np.ones((1, 8), np.float32), "n": np.array(count)}


class Waiting:
    """Somebody who waits for an answer until told otherwise."""

    def __init__(self) -> None:
        self.checked = threading.Event()
        self.gone = threading.Event()

    def has_gone(self) -> bool:
        self.checked.set()
        return self.gone.is_set()


def meanwhile(run: Callable[[], list[Any]], then: Callable[[], None]) -> list[Any]:
    """Return what ``run`` returns on another thread, while ``then`` is called."""
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.extend(run()), daemon=True)
    thread.start()
    then()
    thread.join(LIMIT_SECONDS)
    assert not thread.is_alive()
    return answers


def test_a_loop_ends_when_its_request_does_and_no_other(engine: Engine) -> None:
    waiting = Waiting()

    def leave() -> None:
        assert waiting.checked.wait(LIMIT_SECONDS)
        waiting.gone.set()
        engine.wake()

    requests = [Lane(rounds(ENDLESS), cancelled=waiting.has_gone), Lane(rounds(3))]
    left, answered = meanwhile(lambda: engine.run_lanes(requests), leave)
    assert isinstance(left, CancelledError)
    np.testing.assert_array_equal(answered[0]["y"], np.full((1, 8), 4, np.float32))
    engine.wake()
    assert engine.run(rounds(1))[0]["y"].sum() == 16


def test_a_loop_that_somebody_waits_for_goes_on(engine: Engine) -> None:
    waiting = Waiting()

    def wake() -> None:
        assert waiting.checked.wait(LIMIT_SECONDS)
        engine.wake()

    (answer,) = meanwhile(
        lambda: engine.run_lanes([Lane(rounds(1000), cancelled=waiting.has_gone)]), wake
    )
    assert answer[0]["y"].sum() == 8 * 1001


def test_a_program_waits_no_longer_than_it_says(pack: Pack) -> None:
    with layerstream.open(pack.folder) as model:
        with pytest.raises(DeadlineError):
            model(rounds(ENDLESS), timeout=0.05)
        assert model(rounds(0), timeout=LIMIT_SECONDS)["y"].sum() == 8
