"""What the kernel says of the server meanwhile: memory of its group, files, threads, connections."""

import asyncio
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import IO

from benchmarks.machine import processes
from pipeline.peers.cgroup import MemoryGroup

_SAMPLE_SECONDS = 0.05
_COUNT_EVERY = 20  # samples: listing a thousand files takes a while


@dataclass(frozen=True)
class Counts:
    """What the server has open."""

    files: int
    threads: int
    connections: int

    def as_dict(self) -> dict[str, int]:
        """Return the counts by name."""
        return asdict(self)


def count(pid: int, port: int) -> Counts:
    """Return what process ``pid``, which listens on ``port``, has open."""
    return Counts(
        files=processes.open_files(pid),
        threads=processes.threads(pid),
        connections=processes.connections(pid, port),
    )


class PeakSampler:
    """Keeps the largest of what it sees; ``take`` gives the peaks since it was last called."""

    def __init__(self, group: MemoryGroup, pid: int, port: int) -> None:
        self._group, self._pid, self._port = group, pid, port
        self._recent: dict[str, int] = {}
        self.peaks: dict[str, int] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Look twenty times a second until stopped or the server is gone."""
        samples = 0
        while not stop.is_set():
            seen = asdict(self._group.usage())
            if samples % _COUNT_EVERY == 0:
                try:
                    seen |= count(self._pid, self._port).as_dict()
                except OSError:
                    return
            for name, value in seen.items():
                self._recent[name] = max(value, self._recent.get(name, 0))
            samples += 1
            await asyncio.sleep(_SAMPLE_SECONDS)

    def take(self) -> dict[str, int]:
        """Return the largest values since the last call."""
        recent, self._recent = self._recent, {}
        for name, value in recent.items():
            self.peaks[name] = max(value, self.peaks.get(name, 0))
        return recent


class LogReader:
    """Reads the server's log as a journal would: nothing of it stays in the server's group."""

    def __init__(self, stream: IO[str]) -> None:
        self.bytes = 0
        self._last: deque[str] = deque(maxlen=20)
        self._thread = threading.Thread(target=self._read, args=(stream,), daemon=True)
        self._thread.start()

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            self.bytes += len(line)
            self._last.append(line[:400])

    def tail(self) -> str:
        """Return the last lines."""
        return "".join(self._last)


def pool_bytes(reported: Mapping[str, float]) -> int:
    """Return the memory that requests in flight share, 0 where the service has no such limit."""
    return int(reported.get("layerstream_request_memory_bytes", 0))
