"""How fast the read pool reads one file around the page cache, beside fio (block and depth the same).

Both read the whole file from its start, some times over, in turns; medians are printed, and the CPU time
per gigabyte. fio is Debian's package of that name; it uses io_uring, or libaio where the kernel refuses
that. Reads into 4 KiB pages are half as fast as into huge ones, so fio gets huge pages too, through
glibc's allocator (from 2.35 on); ``--small-pages`` gives them to neither.

Run as ``python -m benchmarks.reads [FILE] [--block 4MiB] [--depth 2] [--rounds 7]``;
without FILE it makes one of 256 MiB. Exit 1 when the pool reaches less than 0.9 of fio's bandwidth.
"""

import argparse
import json
import os
import queue
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from loader.buffers import Buffer
from loader.errors import LoaderError
from loader.pool.jobs import ReadJob
from loader.pool.pool import ReadPool
from loader.readers.files import open_reader
from loader.readers.interface import Range, Reader
from models.sizes import parse_size

_WANTED_RATIO = 0.9
_MADE_BYTES = 256 << 20
_READ_SECONDS = 60.0
_LOOPS = 4
_HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


@dataclass(frozen=True)
class Reading:
    """Bytes per second, and CPU seconds per 10^9 bytes."""

    bandwidth: float
    cpu_seconds_per_gb: float


class ReadLoad:
    """Keeps ``depth`` reads of ``block`` bytes in flight, as a sweep does."""

    def __init__(self, path: Path, block: int, depth: int, huge_pages: bool) -> None:
        self._pool = ReadPool(depth)
        self._client = self._pool.client("benchmark", depth)
        self._reader: Reader = open_reader(path)
        self._starts = list(range(0, path.stat().st_size - block + 1, block)) * _LOOPS
        self._block = block
        self._depth = depth
        self._buffer = Buffer(block * depth, huge_pages)
        self._buffer.bytes[:] = 0
        self._ended: queue.SimpleQueue[tuple[int, LoaderError | None]] = queue.SimpleQueue()
        self.kind = self._reader.kind

    def read(self) -> Reading:
        """Read the whole file, ``_LOOPS`` times."""
        cpu, started = _cpu_seconds(resource.RUSAGE_SELF), time.perf_counter()
        free = list(range(self._depth))
        for start in self._starts:
            self._submit(start, free.pop() if free else self._next())
        for _ in range(min(self._depth, len(self._starts))):
            self._next()
        seconds = time.perf_counter() - started
        return _reading(
            len(self._starts) * self._block, seconds, _cpu_seconds(resource.RUSAGE_SELF) - cpu
        )

    def close(self) -> None:
        """End the threads."""
        pages = self._buffer.pages()
        print(f"buffer: {pages.huge_bytes >> 20} of {pages.touched_bytes >> 20} MiB on huge pages")
        self._pool.close()
        self._reader.close()

    def _submit(self, start: int, place: int) -> None:
        def done(error: LoaderError | None, _seconds: float) -> None:
            self._ended.put((place, error))

        target = self._buffer.bytes[place * self._block : (place + 1) * self._block].data
        ranges = (Range(start, self._block, ""),)
        self._pool.submit(ReadJob(self._reader, ranges, target, False, done, self._client))

    def _next(self) -> int:
        place, error = self._ended.get(timeout=_READ_SECONDS)
        if error is not None:
            raise error
        return place


def fio(path: Path, block: int, depth: int, engine: str, huge_pages: bool) -> Reading:
    """Let fio read the whole file, ``_LOOPS`` times."""
    command = [*_fio(path, block, engine), f"--iodepth={depth}", f"--loops={_LOOPS}"]
    environment = dict(os.environ) | (_HUGE_PAGES if huge_pages else {})
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    if done.returncode:
        sys.exit(f"fio: {done.stderr.strip() or done.stdout.strip()}")
    job = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]
    n_bytes, seconds = job["read"]["io_bytes"], job["read"]["runtime"] / 1e3
    return _reading(n_bytes, seconds, seconds * (job["usr_cpu"] + job["sys_cpu"]) / 100)


def _engine(path: Path, block: int) -> str:
    """Return io_uring, or libaio where fio reads no block with it."""
    command = [*_fio(path, block, "io_uring"), "--number_ios=1"]
    works = subprocess.run(command, check=False, capture_output=True).returncode == 0
    return "io_uring" if works else "libaio"


def _fio(path: Path, block: int, engine: str) -> list[str]:
    command = ["fio", "--name=reads", f"--filename={path}", "--rw=read", "--direct=1", "--readonly"]
    command += [f"--bs={block}", f"--ioengine={engine}", "--thread", "--allow_file_create=0"]
    return [*command, "--output-format=json"]


def _reading(n_bytes: int, seconds: float, cpu_seconds: float) -> Reading:
    return Reading(n_bytes / seconds, cpu_seconds / (n_bytes / 1e9))


def _cpu_seconds(who: int) -> float:
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def compare(path: Path, block: int, depth: int, rounds: int, huge_pages: bool = True) -> float:
    """Print medians of both, measured in turns; return ours over fio's bandwidth."""
    engine = _engine(path, block)
    pool = ReadLoad(path, block, depth, huge_pages)
    ours, theirs = [], []
    try:
        for _ in range(rounds):
            ours.append(pool.read())
            theirs.append(fio(path, block, depth, engine, huge_pages))
    finally:
        pool.close()
    print(f"{path.name}: {path.stat().st_size >> 20} MiB, block {block >> 10} KiB, depth {depth}")
    _print(f"pool ({pool.kind})", ours)
    _print(f"fio ({engine})", theirs)
    ratio = median(each.bandwidth for each in ours) / median(each.bandwidth for each in theirs)
    print(f"ratio {ratio:.2f} (wanted: at least {_WANTED_RATIO})")
    return ratio


def _print(name: str, readings: list[Reading]) -> None:
    bandwidth = median(each.bandwidth for each in readings) / 1e9
    cpu = 1e3 * median(each.cpu_seconds_per_gb for each in readings)
    print(f"  {name:28} {bandwidth:5.2f} GB/s  {cpu:6.1f} ms CPU per GB")


def main() -> None:
    """Compare; exit 1 below the wanted ratio, 2 where fio is missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--block", type=parse_size, default="4MiB")
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--small-pages", action="store_true")
    options = parser.parse_args()
    if shutil.which("fio") is None:
        print("fio is not installed: apt-get install fio", file=sys.stderr)
        sys.exit(2)
    if options.file is not None and options.file.stat().st_size < options.block:
        parser.error(f"{options.file}: smaller than one block")
    with tempfile.TemporaryDirectory(dir=".") as folder:
        path = options.file or _make(Path(folder, "reads.bin"))
        ratio = compare(
            path,
            options.block,
            options.depth,
            options.rounds,
            not options.small_pages,
        )
    sys.exit(ratio < _WANTED_RATIO)


def _make(path: Path) -> Path:
    with path.open("wb") as file:
        for _ in range(_MADE_BYTES >> 22):
            file.write(os.urandom(1 << 22))
        os.fsync(file.fileno())
    return path


if __name__ == "__main__":
    main()
