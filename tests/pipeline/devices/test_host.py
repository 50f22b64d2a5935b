"""The copy stage of devices that compute in the host's memory."""

import gc
import threading

import pytest

from loader.errors import LoaderError
from pipeline.devices.cpu import CpuDevice
from pipeline.devices.device_memory import HostMemory
from pipeline.devices.expansion import Expansion


def copiers(before: set[threading.Thread]) -> list[threading.Thread]:
    """Return the copy stages that are not of ``before``: other tests' devices may end at any time."""
    return [each for each in set(threading.enumerate()) - before if each.name == "copier"]


def copied(
    device: CpuDevice, source: bytes, target: HostMemory, expansion: Expansion | None = None
) -> Exception | None:
    """Copy, wait, and return the error."""
    ended = threading.Event()
    errors: list[Exception | None] = []

    def done(error: Exception | None, _seconds: float) -> None:
        errors.append(error)
        ended.set()

    device.copy(memoryview(source), target, 0, done, expansion)
    assert ended.wait(10)
    return errors[0]


def test_it_copies_on_one_thread_that_close_ends() -> None:
    before, device, target = set(threading.enumerate()), CpuDevice(), HostMemory(4)
    assert not copiers(before)  # none before the first copy
    for source in (b"abcd", b"efgh"):
        assert copied(device, source, target) is None
        assert bytes(target.host(0, 4)) == source
        assert len(copiers(before)) == 1
    for _ in range(2):
        device.close()
        assert not copiers(before)


def test_the_thread_of_a_device_that_nobody_closed_ends_with_it() -> None:
    before, device = set(threading.enumerate()), CpuDevice()
    copied(device, b"abcd", HostMemory(4))
    (thread,) = copiers(before)
    del device
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()


def test_a_copy_that_cannot_be_made_is_an_error() -> None:
    device = CpuDevice()
    try:
        assert isinstance(copied(device, b"abcd", HostMemory(3)), LoaderError)
        assert copied(device, b"abc", HostMemory(3)) is None  # and the next one is right
    finally:
        device.close()


class NoMemory(Expansion):
    def run(self, source: memoryview, target: memoryview) -> None:
        raise MemoryError


def test_a_copy_without_a_thread_is_an_error_and_the_next_one_starts_it() -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    device, target = CpuDevice(), HostMemory(4)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(LoaderError, match="can't start new thread"):
                device.copy(memoryview(b"abcd"), target, 0, lambda error, seconds: None)
        assert copied(device, b"abcd", target) is None
    finally:
        device.close()


def test_whatever_an_expansion_raises_ends_its_copy_alone() -> None:
    device = CpuDevice()
    try:
        error = copied(device, b"", HostMemory(1), NoMemory([]))
        assert isinstance(error, LoaderError)
        assert "MemoryError" in str(error)
        assert copied(device, b"abc", HostMemory(3)) is None
    finally:
        device.close()


def test_a_callback_that_fails_ends_no_other_copy(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_error: Exception | None, _seconds: float) -> None:
        raise RuntimeError("not ready")

    device, target = CpuDevice(), HostMemory(3)
    try:
        device.copy(memoryview(b"abc"), target, 0, fail)
        assert copied(device, b"xyz", target) is None
    finally:
        device.close()
    assert "a callback failed" in caplog.text


def test_a_copy_while_it_closes_is_of_another_thread() -> None:
    device, target = CpuDevice(), HostMemory(3)
    began, goes_on, ended = threading.Event(), threading.Event(), threading.Event()

    def hold(_error: Exception | None, _seconds: float) -> None:
        began.set()
        goes_on.wait(10)

    device.copy(memoryview(b"abc"), target, 0, hold)
    assert began.wait(10)
    closing = threading.Thread(target=device.close)
    closing.start()
    try:
        while device._copier is not None:
            closing.join(0.001)
        assert copied(device, b"xyz", target) is None
        device.copy(memoryview(b"abc"), target, 0, lambda _error, _seconds: ended.set())
        assert ended.wait(10)
    finally:
        goes_on.set()
        closing.join(10)
        device.close()
    assert not closing.is_alive()
