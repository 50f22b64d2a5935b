"""The copy stage of devices that compute in the host's memory."""

import threading

from loader.errors import LoaderError
from pipeline.devices.cpu import CpuDevice
from pipeline.devices.memory import HostMemory


def copiers() -> int:
    return sum(thread.name == "copier" for thread in threading.enumerate())


def copied(device: CpuDevice, source: bytes, target: HostMemory) -> Exception | None:
    """Copy, wait, and return the error."""
    ended = threading.Event()
    errors: list[Exception | None] = []

    def done(error: Exception | None, _seconds: float) -> None:
        errors.append(error)
        ended.set()

    device.copy(memoryview(source), target, 0, done)
    assert ended.wait(10)
    return errors[0]


def test_it_copies_on_one_thread_that_close_ends() -> None:
    before, device, target = copiers(), CpuDevice(), HostMemory(4)
    assert copiers() == before  # none before the first copy
    for source in (b"abcd", b"efgh"):
        assert copied(device, source, target) is None
        assert bytes(target.host(0, 4)) == source
        assert copiers() == before + 1
    for _ in range(2):
        device.close()
        assert copiers() == before


def test_a_copy_that_cannot_be_made_is_an_error() -> None:
    device = CpuDevice()
    try:
        assert isinstance(copied(device, b"abcd", HostMemory(3)), LoaderError)
        assert copied(device, b"abc", HostMemory(3)) is None  # and the next one is right
    finally:
        device.close()
