"""Models in a memory cgroup of 300 MB give memory back to a neighbour, which takes it in steps of 20 MB.

Three models are asked all the time, and result answer is compared with the first one. Each signal alone:

- events: the protocol of systemd, by a FIFO to which this program writes after result step
- headroom: what the group leaves free
- psi: the kernel's pressure stall information; a process that has too little room makes pressure until a
  step has been given back

Then ``cycles``: models in this process shrink and grow again so many times.

Run as ``python -m benchmarks.pressure [SIGNAL...] [--steps 4] [--cycles 200] [--repository DIR]``; exit 1
unless no request failed, nothing was killed, and memory went back within 2 s and one request.
"""

import argparse
import asyncio
import contextlib
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.load.messages import infer_request, tensors_document
from benchmarks.servers.client import KeptClient, beside, first_output, metrics, process_memory
from benchmarks.servers.served import free_port
from benchmarks.turns import end
from models import zoo
from models.compiler import compile_onnx
from models.packs.pack import open_pack
from models.processes import child_environment, python_command
from models.sizes import parse_size
from pipeline.peers.cgroup import MemoryGroup, memory_group
from server.memory.request_memory import anonymous_bytes
from server.service import Service
from server.settings.settings import Settings

_MODELS = {"resnet50": 224, "mobilenetv2": 224, "squeezenet1.1": 224}
_LIMIT, _STEP, _MB = 300_000_000, 20_000_000, 1e6
_BUDGET = "150MiB"
#: What the neighbour leaves free at first: enough for all steps where a signal does not say what lacks.
_LEFT = {"headroom": 60_000_000, "events": 70_000_000, "psi": 70_000_000}
#: What a shrink may take, beside the longest request.
_MAX_SECONDS = 2.0
_SAMPLE_SECONDS = 0.01
_USED = "layerstream_budget_used_bytes"
#: Plans add in another order; what is wrong differs by more.
_TOLERANCE = 1e-4
_GROWS_SECONDS, _STEADY_SECONDS = 400.0, 8.0
_FLAT_BYTES = 1 << 18


@dataclass
class NeighbourAnswers:
    """What clients got: how many answers, the longest delay, what was wrong."""

    count: int = 0
    longest: float = 0.0
    faults: list[str] = field(default_factory=list)


class Clients:
    """One connection a model, which asks the same again and again, while the block runs."""

    def __init__(self, port: int, repository: Path) -> None:
        self.answers, self._port, self._repository = NeighbourAnswers(), port, repository
        self._counting = threading.Lock()

    def ask(self, model: str, over: threading.Event) -> None:
        """Ask ``model`` until it is ``over``, with some pause between requests."""
        pack = open_pack(next((self._repository / model).iterdir()))
        (port,) = pack.manifest.inputs
        values = np.random.default_rng(0).standard_normal(port.shape, np.float32)
        body = infer_request(model, tensors_document({port.name: values}))
        head, _, content = body.partition(b"\r\n\r\n")
        path, client, first = head.split()[1].decode(), KeptClient(self._port), None
        with contextlib.closing(client):
            while not over.wait(0.02):
                started, fault = time.monotonic(), ""
                try:
                    status, answer = client.ask("POST", path, content)
                    if status != 200:
                        fault = f"{model}: {status} {answer[:80]!r}"
                    else:
                        output = first_output(answer)
                        first = output if first is None else first
                        if not np.allclose(output, first, _TOLERANCE, _TOLERANCE):
                            fault = f"{model}: wrong by {np.abs(output - first).max()}"
                except (OSError, HTTPException) as exc:
                    fault, client = f"{model}: {exc!r}", KeptClient(self._port)
                with self._counting:
                    self.answers.count += 1
                    self.answers.longest = max(self.answers.longest, time.monotonic() - started)
                    if fault:
                        self.answers.faults.append(fault)


class Neighbour:
    """A process in the same group that holds so much memory."""

    def __init__(self, group: MemoryGroup) -> None:
        self._process = subprocess.Popen(
            group.inside(python_command("benchmarks.children.neighbour")),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=child_environment(),
        )
        self.n_bytes = 0

    def hold(self, n_bytes: int) -> None:
        """Hold so much from now on.

        Raises:
            OSError: it was killed.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{n_bytes}\n")
        self._process.stdin.flush()
        if not self._process.stdout.readline():
            raise OSError("the neighbour was killed")
        self.n_bytes = n_bytes

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()


@dataclass
class Step:
    """One step of the neighbour, and what models gave back, by the budget and by the kernel.

    ``first_seconds``, ``complete_seconds``: from the signal until less is reserved, and until no less is.
    ``rose_bytes``: how much more anonymous memory there was meanwhile than before.
    """

    reserved_bytes: int
    anonymous_bytes: int
    first_seconds: float
    complete_seconds: float
    rose_bytes: int


def watched(
    pid: int,
    base: str,
    signal: Callable[[], object],
    seconds: float,
    completed: Callable[[], object] = lambda: None,
) -> Step:
    """Call ``signal``, and follow the memory of ``pid`` for so many ``seconds``.

    ``completed``: called when a step has been given back.
    """
    before = [_anonymous(pid) for _ in range(50)]
    used = start = metrics(base)[_USED]
    signal()
    started, first, complete, samples = time.monotonic(), 0.0, 0.0, list[int]()
    while (now := time.monotonic() - started) < seconds:
        samples.append(_anonymous(pid))
        if len(samples) % 5 == 0 and (reserved := metrics(base)[_USED]) < used:
            used, complete = reserved, now
            first = first or now
            if start - used >= _STEP:
                completed()
    # Between requests, since those take memory of their own.
    anonymous = min(before) - min(samples[-50:])
    return Step(int(start - used), anonymous, first, complete, max(max(samples) - max(before), 0))


def _anonymous(pid: int) -> int:
    time.sleep(_SAMPLE_SECONDS)
    return process_memory(pid)["rss_anonymous_bytes"]


@contextlib.contextmanager
def served(group: MemoryGroup, repository: Path, signals: str, **environ: str) -> Iterator[Any]:
    """Yield process and port of a server in ``group`` that follows ``signals``."""
    port = free_port()
    flags = ["--budget", _BUDGET, "--memory-pressure", signals, "--port", str(port)]
    command = python_command("cli", "serve", "--repository", str(repository), *flags)
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            group.inside(command), stderr=log, env=child_environment() | environ
        )
        try:
            _wait(process, port)
            yield process, port
        finally:
            process.terminate()
            process.wait(60)
            log.seek(0)
            print("".join(line for line in log if "memory" in line), end="")


def _wait(process: "subprocess.Popen[bytes]", port: int) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError):
            client = KeptClient(port)
            if client.ask("GET", "/v2/health/ready")[0] == 200:
                return
        time.sleep(0.1)
    raise RuntimeError("the server did not start")


def _pressure_environment(signal: str, folder: Path) -> dict[str, str]:
    if signal != "events":
        return {}
    os.mkfifo(folder / "fifo")
    return {"MEMORY_PRESSURE_WATCH": str(folder / "fifo")}


@contextlib.contextmanager
def thrashing() -> Iterator[None]:
    """Have a process that reads a mapped file in too small a group wait for memory all the time."""
    with (
        memory_group("layerstream-thrash", 12_000_000) as group,
        tempfile.NamedTemporaryFile(dir=".") as file,
    ):
        file.write(os.urandom(64 << 20))
        file.flush()
        os.fsync(file.fileno())
        # Pages that are cached already are charged to no group that maps them.
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        code = (
            "import mmap,sys\n"
            "f=open(sys.argv[1],'rb')\n"
            "m=mmap.mmap(f.fileno(),0,prot=mmap.PROT_READ)\n"
            "while True:\n for i in range(0,len(m),4096): m[i]"
        )
        process = subprocess.Popen(group.inside(["python3", "-S", "-c", code, file.name]))
        try:
            yield
        finally:
            process.kill()
            process.wait()


def under(signal: str, repository: Path, steps: int) -> dict[str, Any]:
    """Return what came of so many steps of a neighbour, and of its end, under one signal alone."""
    setting = "headroom" if signal == "headroom" else "events"
    with (
        tempfile.TemporaryDirectory() as folder,
        memory_group("layerstream-pressure", _LIMIT) as group,
        served(group, repository, setting, **_pressure_environment(signal, Path(folder))) as server,
        contextlib.closing(Neighbour(group)) as neighbour,
    ):
        process, port = server
        base = f"http://127.0.0.1:{port}"
        clients = Clients(port, repository)
        works = [lambda over, model=model: clients.ask(model, over) for model in _MODELS]
        with beside(*works):
            largest = _steady(base)
            usage = group.usage()
            neighbour.hold(max(_LIMIT - (usage.total - usage.file) - _LEFT[signal], 0))
            done = [
                _stepped(signal, process.pid, base, neighbour, Path(folder)) for _ in range(steps)
            ]
            smallest = metrics(base)[_USED]
            neighbour.hold(0)
            grown_seconds = _grown(base, largest)
        answers = clients.answers
        killed = group.oom_kills
    effective = [step for step in done if step.reserved_bytes]
    bound = _MAX_SECONDS + answers.longest
    return {
        "signal": signal,
        "steps": len(done),
        "reserved_less_mb": [round(step.reserved_bytes / _MB, 1) for step in done],
        "anonymous_less_mb": [round(step.anonymous_bytes / _MB, 1) for step in done],
        "first_seconds": [round(step.first_seconds, 2) for step in done],
        "complete_seconds": [round(step.complete_seconds, 2) for step in done],
        "rose_mb": [round(step.rose_bytes / _MB, 2) for step in done],
        "used_mb": [round(largest / _MB, 1), round(smallest / _MB, 1)],
        "grown_again_seconds": grown_seconds and round(grown_seconds),
        "answers": answers.count,
        "longest_seconds": round(answers.longest, 2),
        "faults": answers.faults[:5],
        "killed": killed,
        "holds": bool(effective)
        and not (answers.faults or killed)
        and grown_seconds is not None
        and all(step.complete_seconds <= bound for step in effective),
    }


def _steady(base: str) -> float:
    """Return what is reserved when models have not grown for a while."""
    last, since = 0.0, time.monotonic()
    while time.monotonic() - since < _STEADY_SECONDS:
        if (reserved := metrics(base)[_USED]) != last:
            last, since = reserved, time.monotonic()
        time.sleep(0.5)
    return last


def _stepped(signal: str, pid: int, base: str, neighbour: Neighbour, folder: Path) -> Step:
    if signal == "headroom":
        return watched(pid, base, lambda: neighbour.hold(neighbour.n_bytes + _STEP), 6)
    if signal == "events":
        # Less than what is given back, so that this signal alone is enough.
        neighbour.hold(neighbour.n_bytes + _STEP // 2)
        return watched(pid, base, lambda: (folder / "fifo").write_bytes(b"x"), 6)
    neighbour.hold(neighbour.n_bytes + _STEP // 2)
    with contextlib.ExitStack() as pressure:
        return watched(pid, base, lambda: pressure.enter_context(thrashing()), 8, pressure.close)


def _grown(base: str, n_bytes: float) -> float | None:
    """Return after how many seconds models use as much as before; None: they do not."""
    started = time.monotonic()
    while (now := time.monotonic() - started) < _GROWS_SECONDS:
        if metrics(base)[_USED] >= 0.9 * n_bytes:
            return now
        time.sleep(1)
    return None


async def cycled(repository: Path, cycles: int) -> dict[str, Any]:
    """Return anonymous memory of this process after result of so many shrinks by 20 MB and growths."""
    settings = Settings(repository=repository, budget=parse_size(_BUDGET), memory_pressure="off")
    samples = []
    async with Service(settings) as service:
        await service.loaded()
        await service.repository.at_rest()
        used_bytes = service.budget.used_bytes
        for _ in range(cycles):
            await service.repository.relieve(used_bytes - _STEP)
            service.repository.ease(service.budget.total_bytes)
            await service.repository.at_rest()
            samples.append(anonymous_bytes())
    half = len(samples) // 2
    rose = median(samples[half:]) - median(samples[: half or 1])
    return {
        "signal": "cycles",
        "cycles": cycles,
        "anonymous_mib": [round(n / 2**20, 2) for n in samples[:: max(cycles // 10, 1)]],
        "rose_mib": round(rose / 2**20, 3),
        "holds": rose <= _FLAT_BYTES,
    }


def build(repository: Path) -> None:
    """Compile the models that are not there yet."""
    for name, resolution in _MODELS.items():
        if not (repository / name).exists():
            source = repository.parent / f"{name}.onnx"
            zoo.build(name, source, resolution=resolution)
            compile_onnx(source, repository / name)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    names = ("events", "headroom", "psi", "cycles")
    parser.add_argument("signals", nargs="*", choices=[*names, []], default=names)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--cycles", type=int, default=200)
    parser.add_argument("--repository", type=Path, help="Keep the packs there.")
    return parser.parse_args()


def _measured(repository: Path, options: argparse.Namespace) -> Sequence[Mapping[str, Any]]:
    repository.mkdir(parents=True, exist_ok=True)
    build(repository)
    return [
        asyncio.run(cycled(repository, options.cycles))
        if signal == "cycles"
        else under(signal, repository, options.steps)
        for signal in options.signals
    ]


def main() -> None:
    """Run all and print what was measured as JSON."""
    options = _options()
    with tempfile.TemporaryDirectory(dir=".") as folder:
        repository = options.repository or Path(folder) / "repository"
        results = _measured(repository.resolve(), options)
    end(results, all(result["holds"] for result in results))


if __name__ == "__main__":
    main()
