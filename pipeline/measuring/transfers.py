"""Measuring transfers: r by bytes and reads in flight, from the pack's own file, and c by bytes."""

import queue
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from loader.buffers import PAGE_BYTES, Buffer
from loader.errors import LoaderError
from loader.pool.jobs import ReadJob
from loader.pool.pool import ReadPool
from loader.readers.interface import Range, Reader
from models.packs.pack import Pack
from models.packs.records.spans import Span
from pipeline.devices.base import Device
from pipeline.devices.device_memory import Memory
from pipeline.devices.expansion import Expansion, expansion_of

DEPTHS = (1, 2, 4)
_SMALLEST_BYTES = 64 << 10
_LARGEST_BYTES = 8 << 20
# A row of the table takes so many reads a round, and at most so many bytes beyond two reads a server.
_READS = 8
_ROW_BYTES = 16 << 20
_TIMEOUT_SECONDS = 60.0

Ended = tuple[int, Exception | None]


# Of single pages, which rows of tables lie in, so many are read one after the other by one of the reads.
_PAGES_A_READ = 16


def sizes(largest_bytes: int) -> list[int]:
    """Return the sizes of the table: doubling, up to 8 MiB or what the file has; none of an empty file."""
    if not largest_bytes:
        return []
    doubled = []
    n_bytes = _SMALLEST_BYTES
    while n_bytes <= min(_LARGEST_BYTES, largest_bytes):
        doubled.append(n_bytes)
        n_bytes *= 2
    return doubled or [max(largest_bytes // PAGE_BYTES * PAGE_BYTES, PAGE_BYTES)]


@dataclass(frozen=True)
class FileReads:
    """Reads of the first ``n_bytes`` of a file through ``pool`` into a buffer on huge pages."""

    reader: Reader
    pool: ReadPool
    buffer: Buffer
    n_bytes: int

    def take(self, ranges: Sequence[tuple[int, int]], depth: int) -> Iterator[float]:
        """Yield the seconds of each read (offset, length), ``depth`` of them in flight.

        Raises:
            LoaderError: one failed, or did not end.
        """
        return self._take([(Range(offset, length, ""),) for offset, length in ranges], depth)

    def _take(self, reads: Sequence[tuple[Range, ...]], depth: int) -> Iterator[float]:
        ended: queue.SimpleQueue[Ended] = queue.SimpleQueue()
        started: list[float] = []
        for _ in reads[:depth]:
            self._start(reads, started, depth, ended)
        for _ in reads:
            try:
                number, error = ended.get(timeout=_TIMEOUT_SECONDS)
            except queue.Empty:
                raise LoaderError(f"a read did not end in {_TIMEOUT_SECONDS:.0f} s") from None
            if error is not None:
                raise error
            seconds = time.perf_counter() - started[number]
            if len(started) < len(reads):
                self._start(reads, started, depth, ended)
            yield seconds

    def row(self, n_bytes: int, depth: int, turn: int) -> Iterator[float]:
        """Yield the seconds of some reads of ``n_bytes``; each ``turn`` goes on where the last ended."""
        count = max(min(_READS, _ROW_BYTES // n_bytes), 2 * depth)
        places = max(self.n_bytes // n_bytes, 1)
        offsets = [(turn * count + number) % places * n_bytes for number in range(count)]
        return self.take([(offset, n_bytes) for offset in offsets], depth)

    def pages(self, depth: int) -> Iterator[float]:
        """Yield what reading a page takes, anywhere in the file, while ``depth`` of them are in flight."""
        generator = np.random.default_rng(0)
        count = _READS * depth
        starts = generator.integers(0, max(self.n_bytes // PAGE_BYTES, 1), (count, _PAGES_A_READ))
        reads = [
            tuple(Range(int(page) * PAGE_BYTES, PAGE_BYTES, "") for page in row) for row in starts
        ]
        return (seconds / _PAGES_A_READ for seconds in self._take(reads, depth))

    def _start(
        self,
        reads: Sequence[tuple[Range, ...]],
        started: list[float],
        depth: int,
        ended: queue.SimpleQueue[Ended],
    ) -> None:
        number = len(started)
        length = sum(item.length for item in reads[number])
        place = number % depth * (self.buffer.n_bytes // depth // PAGE_BYTES * PAGE_BYTES)
        place = place if place + length <= self.buffer.n_bytes else 0
        started.append(time.perf_counter())
        self.pool.submit(
            ReadJob(
                self.reader,
                reads[number],
                self.buffer.bytes[place : place + length].data,
                False,
                lambda error, seconds: ended.put((number, error)),
            )
        )


@dataclass(frozen=True)
class Copies:
    """Copies of weights of ``pack`` from ``source`` to ``target`` by ``device``, expanded as in sweeps."""

    pack: Pack
    device: Device
    source: Memory
    target: Memory

    def seconds(self, n_bytes: int) -> Iterator[float]:
        """Yield the seconds of some copies that make ``n_bytes``: of spans of about as many.

        Raises:
            LoaderError: a copy failed, or did not end. OSError: no access to the weights.
        """
        for run in _runs(self.pack.manifest.spans, n_bytes):
            length = sum(span.length for span in run)
            staged = self.source.host(0, sum(span.file_length for span in run))
            with self.pack.weights_path.open("rb") as file:
                file.seek(run[0].file_offset)
                file.readinto(staged)
            yield self._copy(staged, expansion_of(run)) * n_bytes / length

    def _copy(self, staged: memoryview, expansion: Expansion | None) -> float:
        ended: queue.SimpleQueue[Ended] = queue.SimpleQueue()
        began = time.perf_counter()
        self.device.copy(
            staged, self.target, 0, lambda error, seconds: ended.put((0, error)), expansion
        )
        try:
            error = ended.get(timeout=_TIMEOUT_SECONDS)[1]
        except queue.Empty:
            raise LoaderError(f"a copy did not end in {_TIMEOUT_SECONDS:.0f} s") from None
        if error is not None:
            raise error
        return time.perf_counter() - began


def _runs(spans: Sequence[Span], n_bytes: int) -> list[Sequence[Span]]:
    """Return some runs of ``spans`` of up to ``n_bytes`` each, or of one; spread over all of them."""
    firsts, run_bytes = [0], 0
    for number, span in enumerate(spans):
        if run_bytes and run_bytes + span.length > n_bytes:
            firsts.append(number)
            run_bytes = 0
        run_bytes += span.length
    runs = [spans[first:end] for first, end in pairwise([*firsts, len(spans)])]
    return runs[:: -(-len(runs) // _READS)]
