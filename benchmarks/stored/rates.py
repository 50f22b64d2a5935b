"""What expanding stored weights takes beside the disk that brings them: bytes of the file a second, both.

Turns alternate: the weights of a pack are read, in the reads that a plan would do; then they are expanded
from memory by one thread; then both at once. Expanding never limits a pipeline where it takes the bytes of
the file twice as fast as the disk brings them. Medians of the turns.

Run as ``python -m benchmarks.stored.rates PACK... [--pace 1GB/s 3.5GB/s] [--ring 16MiB] [--turns 7]``; a
pace is a disk of that speed that reads without a core, in place of the real one. Prints Markdown.
"""

import argparse
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from loader.buffers import Buffer
from loader.cores import hasten
from loader.pool.pool import ReadPool
from loader.readers.disk import REAL_DISK, Disk, paced_disk
from loader.readers.interface import Reader
from models.packs.pack import Pack, open_pack
from pipeline.devices.expansion import Expansion
from pipeline.measuring.transfers import FileReads
from pipeline.planning.make import make_plan
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES
from server.settings.sizes import parse_size

_DEPTH = 2


@dataclass(frozen=True)
class StoredRead:
    """One read: the bytes [offset, offset + length) of the file, and what they become."""

    offset: int
    length: int
    expansion: Expansion


def main() -> None:
    """Print a row for each pack and disk."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pack", nargs="+", type=Path)
    parser.add_argument("--pace", nargs="*", default=[])
    parser.add_argument("--ring", type=parse_size, default=16 << 20)
    parser.add_argument("--turns", type=int, default=7)
    options = parser.parse_args()
    disks = {"this machine's": REAL_DISK}
    disks |= {pace: paced_disk(parse_size(pace.removesuffix("/s"))) for pace in options.pace}
    print("GB/s of the file, and how often faster expanding is; in brackets: both at once\n")
    print("| pack | disk | read | expanded | times |\n|---|---|---:|---:|---:|")
    for folder in options.pack:
        pack = open_pack(folder)
        for name, disk in disks.items():
            print(_row(pack, name, disk, options.ring, options.turns), flush=True)


def _row(pack: Pack, name: str, disk: Disk, ring_bytes: int, turns: int) -> str:
    found = _parts(pack, ring_bytes)
    n_bytes = sum(part.length for part in found)
    with (
        closing(ReadPool()) as pool,
        closing(disk.open_for_timing(pack.weights_path)) as reader,
        closing(Buffer(_DEPTH * max(part.length for part in found) + (4 << 20))) as staging,
        closing(_whole(pack)) as file,
        closing(Buffer(ring_bytes)) as ring,
    ):
        read = _reads(pool, reader, staging, found)
        expand = _expansions(found, file, ring)
        turned = [(_timed(read), _timed(expand), *_at_once(read, expand)) for _ in range(turns + 1)]
    seconds = turned[1:]  # the first one touches the memory
    rates = [n_bytes / median(column) / 1e9 for column in zip(*seconds, strict=True)]
    times = [rates[1] / rates[0], rates[3] / rates[2]]
    return (
        f"| {pack.name} {pack.manifest.store} | {name} | {rates[0]:.2f} ({rates[2]:.2f}) | "
        f"{rates[1]:.1f} ({rates[3]:.1f}) | {times[0]:.1f} ({times[1]:.1f}) |"
    )


def _parts(pack: Pack, ring_bytes: int) -> list[StoredRead]:
    program = Program.as_compiled(pack)
    ring_bytes = max(ring_bytes, 2 * program.largest_chunk_bytes)
    plan = make_plan(program, ARCHITECTURES["2s"], ring_bytes)
    parts = []
    for group in plan.groups:
        spans = [program.spans[i] for i in plan.streamed[group.first_span : group.end_span]]
        length = sum(span.file_length for span in spans)
        parts.append(StoredRead(spans[0].file_offset, length, Expansion(spans)))
    return parts


def _whole(pack: Pack) -> Buffer:
    """Return all bytes of the weights."""
    buffer = Buffer(pack.weights_path.stat().st_size)
    with pack.weights_path.open("rb") as file:
        file.readinto(buffer.bytes.data)
    return buffer


def _reads(
    pool: ReadPool, reader: Reader, staging: Buffer, parts: Sequence[StoredRead]
) -> Callable[[], None]:
    reads = FileReads(reader, pool, staging, 0)
    ranges = [(part.offset, part.length) for part in parts]

    def read() -> None:
        for _ in reads.take(ranges, _DEPTH):
            pass

    return read


def _expansions(parts: Sequence[StoredRead], file: Buffer, ring: Buffer) -> Callable[[], None]:
    """Return what expands all parts, one behind the other in the ring, from its start again."""

    def expand() -> None:
        place = 0
        for part in parts:
            made = part.expansion.target_bytes
            place = place if place + made <= ring.n_bytes else 0
            source = file.bytes[part.offset : part.offset + part.length]
            part.expansion.run(source.data, ring.bytes[place : place + made].data)
            place += made

    return expand


def _timed(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _at_once(read: Callable[[], None], expand: Callable[[], None]) -> tuple[float, float]:
    """Return the seconds of reading beside expanding, which goes on until it ends, and of expanding."""
    seconds: list[float] = []
    ends = threading.Event()

    def go_on() -> None:
        hasten()
        while not (seconds and ends.is_set()):
            seconds.append(_timed(expand))

    beside = threading.Thread(target=go_on)
    beside.start()
    taken = _timed(read)
    ends.set()
    beside.join()
    return taken, median(seconds)


if __name__ == "__main__":
    main()
