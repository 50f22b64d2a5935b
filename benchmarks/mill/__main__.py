"""Run the request mill: ``python -m benchmarks.mill [--seconds 600] [--attacks idle,flood]``.

Starts the service as deploy/ configures it, in a memory cgroup of MemoryMax as deploy/ computes it, plays
attacks beside good clients, and prints JSON. Exit status 1 when one of its ``lines`` does not hold.
"""

import argparse
import asyncio
import os
import resource
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.machine.processes import cpu_seconds
from benchmarks.mill import beside_calm
from benchmarks.mill.attacks.requests import head
from benchmarks.mill.deployed import CONFIGURATION, memory_max
from benchmarks.mill.errands import build_repository, errands
from benchmarks.mill.measuring import Counts, LogReader, PeakSampler, pool_bytes
from benchmarks.mill.play import Mill, MillResult, known
from benchmarks.mill.verdict import Requirement, at_most, equal, memory_bound
from benchmarks.mill.wire import Wire
from benchmarks.servers.client import metrics, wait_ready
from benchmarks.servers.served import Served, free_port, ours
from benchmarks.turns import end
from models.sizes import parse_size
from pipeline.peers.cgroup import MemoryGroup, memory_group

_STOP_SECONDS = 60.0  # TimeoutStopSec


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mill", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--phase-seconds", type=float, default=12.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", default="32MiB")
    parser.add_argument("--memory-max", help="of the cgroup; default: as deploy/ computes it")
    parser.add_argument("--files", type=int, default=1024, help="limit on the server's open files")
    parser.add_argument("--addresses", type=int, default=4, help="that attacks come from")
    parser.add_argument("--settle", type=float, default=60.0, help="seconds to close all in")
    parser.add_argument("--attacks", default="", help="only these, separated by commas")
    parser.add_argument(
        "--beside-calm",
        action="store_true",
        help="before each attack a phase without one: delays and memory may be twice its",
    )
    parser.add_argument("--serve", default="", help="more flags for serve, separated by blanks")
    return parser.parse_args()


def _start(group: MemoryGroup, repository: Path, options: argparse.Namespace) -> Served:
    port = free_port()
    flags = ["--config", str(CONFIGURATION), "--port", str(port), *options.serve.split()]
    limit = ["/bin/sh", "-c", f'ulimit -n {options.files} && exec "$@"', "sh"]
    command = [*limit, *ours(repository, options.budget, *flags)]
    return Served(group.start(command, stderr=subprocess.PIPE), port)


async def _stop_beside_a_stalled_body(served: Served) -> tuple[int | None, float]:
    """Send SIGTERM while a client stalls in its body; return exit status (None: killed) and seconds."""
    async with await Wire().connect(served.port, "127.0.0.2") as wire:
        await wire.send(head(900_000) + b" " * 1000)
        await asyncio.sleep(0.5)
        began = time.monotonic()
        served.process.send_signal(signal.SIGTERM)
        try:
            code = await asyncio.to_thread(served.process.wait, _STOP_SECONDS)
        except subprocess.TimeoutExpired:
            return None, _STOP_SECONDS
        return code, round(time.monotonic() - began, 1)


async def _run(
    served: Served, folder: Path, sampler: PeakSampler, options: argparse.Namespace
) -> tuple[MillResult, dict[str, Any], list[Requirement]]:
    mill = Mill(served, errands(folder), sampler)
    start = await mill.warm_up()
    # Asyncio's threads and those of requests come as they are needed.
    slack = 2 * min(32, (os.cpu_count() or 1) + 4)
    played = await mill.play(
        *(known(options.attacks), options.seconds, options.phase_seconds),
        *(options.addresses, options.seed, options.beside_calm),
    )
    await mill.settle(start, slack, options.settle)
    code, seconds, cpu = served.process.poll(), 0.0, {}
    if played.died_in is None:
        cpu = {"server": cpu_seconds(served.pid), "mill": _own_cpu_seconds()}
        await mill.last_requests()
        code, seconds = await _stop_beside_a_stalled_body(served)
    ended = {"start": start.as_dict(), "stop_seconds": seconds, "exit_status": code, "cpu": cpu}
    return played, ended, _lines(played, start, slack, code, seconds)


def _own_cpu_seconds() -> float:
    """Return the CPU time of good clients and attackers: of this process and of its children that ended."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return round(sum(usage.ru_utime + usage.ru_stime for usage in usages), 1)


def _lines(
    played: MillResult, start: Counts, slack: int, code: int | None, seconds: float
) -> list[Requirement]:
    last, totals = played.last, played.book.totals()
    return [
        equal("died_in", played.died_in, None),
        at_most("good_requests_failed", totals["failures"], 0),
        at_most("connections_left", last.connections if last else None, 0),
        at_most("files_left", last.files if last else None, start.files),
        at_most("threads_left", last.threads if last else None, start.threads + slack),
        equal("exit_status", code, 0),
        at_most("stop_seconds", seconds, 15.0),
    ]


def _report(played: MillResult) -> dict[str, Any]:
    book = played.book
    phases = [
        {**phase, "good": {name: page.as_dict() for name, page in book.pages[phase["phase"]].items()}}
        for phase in played.phases
    ]  # fmt: skip
    return {"good": book.totals(), "failures": book.failures, "phases": phases}


def _mill(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    repository = build_repository(folder)
    budget = parse_size(options.budget)
    limit = parse_size(options.memory_max) if options.memory_max else memory_max(budget)
    with memory_group("layerstream-mill", limit) as group:
        served = _start(group, repository, options)
        assert served.process.stderr is not None
        log = LogReader(served.process.stderr)
        try:
            if not wait_ready(served.base, served.process):
                raise RuntimeError(f"the server did not start: {log.tail()}")
            reported, at_rest = metrics(served.base), group.usage().total
            sampler = PeakSampler(group, served.pid, served.port)
            played, ended, lines = asyncio.run(_run(served, folder, sampler, options))
        finally:
            served.process.kill()
            served.process.wait()
        pool, base = pool_bytes(reported), int(reported["layerstream_process_base_bytes"])
        bound = memory_bound(budget, base, pool)
        compared = beside_calm.compared(played)
        lines += [
            *beside_calm.lines(compared),
            at_most("cgroup_peak_bytes", group.peak_bytes, bound),
            at_most("oom_kills", group.oom_kills, 0),
        ]
        return {
            "lines": {line.name: line.as_dict() for line in lines},
            "memory": {"limit": limit, "budget": budget, "base": base, "pool": pool}
            | {"at_rest": at_rest, "peak": group.peak_bytes, "sampled_peaks": sampler.peaks},
            "log_bytes": log.bytes,
            "settled_seconds": played.settled_seconds,
            **ended,
            "beside_calm": compared,
            **_report(played),
            "log_tail": log.tail()[-2000:] if ended["exit_status"] else "",
        }


def main() -> None:
    """Run the mill and print its report."""
    options = _options()
    with tempfile.TemporaryDirectory(dir=".") as folder:
        result = _mill(Path(folder), options)
    end(result, all(line["holds"] for line in result["lines"].values()))


if __name__ == "__main__":
    main()
