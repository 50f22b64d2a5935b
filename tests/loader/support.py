"""What tests of the pool share: jobs that keep their answers, readers that wait or fail."""

import queue
import threading
from collections.abc import Callable

import xxhash

from loader.errors import LoaderError
from loader.pool.jobs import PoolClient, ReadJob
from loader.readers.fakes import Hook, MemoryReader
from loader.readers.interface import Range

CONTENT = bytes(range(256)) * 16
PART = 256
WAIT_SECONDS = 30  # how long a broken pool may hang a test


def ranges(offset: int, *lengths: int, content: bytes = CONTENT) -> tuple[Range, ...]:
    found = []
    for length in lengths:
        data = content[offset : offset + length]
        found.append(Range(offset, length, xxhash.xxh3_64_hexdigest(data)))
        offset += length
    return tuple(found)


class Jobs:
    """Makes jobs and keeps what they report."""

    def __init__(self) -> None:
        self.ended: queue.SimpleQueue[tuple[int, LoaderError | None, float]] = queue.SimpleQueue()
        self.targets: dict[int, bytearray] = {}

    def job(
        self,
        number: int,
        reader: MemoryReader,
        parts: tuple[Range, ...],
        verify: bool = True,
        client: PoolClient | None = None,
    ) -> ReadJob:
        self.targets[number] = bytearray(sum(part.length for part in parts))
        return ReadJob(
            reader,
            parts,
            memoryview(self.targets[number]),
            verify,
            lambda error, seconds: self.ended.put((number, error, seconds)),
            client,
        )

    def next(self) -> tuple[int, LoaderError | None, float]:
        return self.ended.get(timeout=WAIT_SECONDS)


class Gate:
    """A hook that holds reads until it is opened, and counts those that wait."""

    def __init__(self) -> None:
        self.arrived = threading.Semaphore(0)
        self.open = threading.Event()

    def __call__(self, _offset: int, _length: int) -> None:
        self.arrived.release()
        assert self.open.wait(WAIT_SECONDS)


def in_thread(action: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    return thread


def raising(error: Exception) -> Hook:
    def hook(_offset: int, _length: int) -> None:
        raise error

    return hook
