"""An engine that sleeps: its pages go, its answers keep their bits, and whatever comes meanwhile waits."""

import threading
from pathlib import Path

import numpy as np
import pytest

from loader.buffers import PAGE_BYTES, Buffer
from loader.errors import ReadError
from loader.pool.pool import ReadPool
from loader.readers.fakes import MemoryReader
from models.packs.pack import Pack
from pipeline.devices.cpu import CpuDevice
from pipeline.devices.device_memory import Memory
from pipeline.execution.engine import Engine
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Ahead, Choice
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES
from tests.examples import over
from tests.pipeline.execution.test_engine import (  # noqa: F401
    OpenEngine,
    Tensor,
    image,
    open_engine,
    pack,
    rings,
    source,
)

pytestmark = pytest.mark.usefixtures("reads_by")


def touched(engine: Engine) -> int:
    """Return how many pages of its memory are there."""
    of = engine._memory
    memories = (of.staging, of.ring, of.resident, of.lease.memory)
    return sum(_pages(memory) for memory in memories if memory.n_bytes)


def _pages(memory: Memory) -> int:
    """Return how many pages of ``memory`` are there, as the kernel's table of pages has it."""
    start = np.frombuffer(memory.host(0, memory.n_bytes), np.uint8).ctypes.data
    first, last = start // PAGE_BYTES, -(-(start + memory.n_bytes) // PAGE_BYTES)
    with Path("/proc/self/pagemap").open("rb") as table:
        table.seek(8 * first)
        entries = np.frombuffer(table.read(8 * (last - first)), np.uint64)
    return int((entries >> np.uint64(63)).sum())


@over("architecture", ["2s", "sync", "async", "seq", "pre"])
def test_answers_after_a_sleep_have_the_same_bits(
    open_engine: OpenEngine,  # noqa: F811
    image: Tensor,  # noqa: F811
    architecture: str,
) -> None:
    check_bits(open_engine(architecture)[0], image)


def check_bits(engine: Engine, image: Tensor) -> None:  # noqa: F811
    expected, _ = engine.run({"image": image})
    for _ in range(3):
        assert engine.sleep()
        answer, _ = engine.run({"image": image})
        assert not engine.is_asleep
        np.testing.assert_array_equal(answer["logits"], expected["logits"])


@over("ahead", ["idle", "tail"])
def test_what_was_read_for_the_next_request_is_read_again(
    open_engine: OpenEngine,  # noqa: F811
    pack: Pack,  # noqa: F811
    image: Tensor,  # noqa: F811
    ahead: Ahead,
) -> None:
    for ring in rings(pack)[1:]:
        engine, _ = open_engine("2s", ring, Choice(resident=(1, 3), ahead=ahead))
        assert engine.ahead_bytes
        check_bits(engine, image)


def test_pages_go_and_come_back_with_the_next_request(
    open_engine: OpenEngine,  # noqa: F811
    image: Tensor,  # noqa: F811
) -> None:
    engine, _ = open_engine("pre")
    engine.run({"image": image})
    before = touched(engine)
    assert before > engine.plan.resident_bytes // PAGE_BYTES // 2
    assert engine.sleep()
    assert touched(engine) <= before // 20
    assert engine.statistics().memory["resident"] == engine.plan.resident_bytes
    engine.run({"image": image})
    assert touched(engine) > before // 2


def test_a_read_that_fails_while_it_wakes_is_an_error_of_that_request(
    pack: Pack,  # noqa: F811
    image: Tensor,  # noqa: F811
) -> None:
    failing: list[Exception] = []

    def before_read(offset: int, length: int) -> None:
        if failing:
            raise failing.pop()

    program = Program.as_compiled(pack)
    pool, device = ReadPool(), CpuDevice()
    reader = MemoryReader(pack.weights_path.read_bytes(), before_read)
    engine = Engine(program, make_plan(program, ARCHITECTURES["pre"]), device, pool, reader)
    engine.open()
    expected, _ = engine.run({"image": image})
    for _ in range(3):
        assert engine.sleep()
        failing.append(ReadError("a bad block"))
        with pytest.raises(ReadError, match="a bad block"):
            engine.run({"image": image})
        assert not engine.broken
        answer, _ = engine.run({"image": image})
        np.testing.assert_array_equal(answer["logits"], expected["logits"])
    assert engine.sleep()
    engine.close()
    assert reader.closed
    assert not engine.sleep(), "it is closed"
    pool.close()
    device.close()


def test_a_request_that_comes_while_pages_go_waits(
    open_engine: OpenEngine,  # noqa: F811
    image: Tensor,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, _ = open_engine("pre")
    expected, _ = engine.run({"image": image})
    going, may_go = threading.Event(), threading.Event()
    discard = engine._memory.discard

    def slowly() -> bool:
        going.set()
        assert may_go.wait(10)
        return discard()

    monkeypatch.setattr(engine._memory, "discard", slowly)
    answers: list[Tensor] = []
    sleeping = threading.Thread(target=engine.sleep)
    asking = threading.Thread(
        target=lambda: answers.append(engine.run({"image": image})[0]["logits"])
    )
    sleeping.start()
    assert going.wait(10)
    asking.start()
    assert not answers
    may_go.set()
    for thread in (sleeping, asking):
        thread.join(10)
    np.testing.assert_array_equal(answers[0], expected["logits"])


def test_memory_that_is_discarded_is_zeroed_at_the_same_address() -> None:
    for n_bytes in (0, 1, 4096, 5000, 3 << 20):
        buffer = Buffer(n_bytes)
        before = buffer.address
        buffer.bytes[:] = 7
        buffer.discard()
        assert buffer.address == before
        assert not buffer.bytes.any()
        buffer.bytes[:] = 9
        assert (buffer.bytes == 9).all()
        buffer.close()
        buffer.discard()
