"""Models in a memory cgroup of 300 MB give memory back to a neighbour, which takes it in steps of 20 MB.

Three models are asked all the time, and each answer is compared with the first one. Each signal alone:

- events: the protocol of systemd, by a FIFO to which this program writes after each step
- headroom: what the group leaves free
- psi: the kernel's pressure stall information; a process that has too little room makes pressure

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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.load.messages import infer_request, tensors_document
from benchmarks.servers.client import KeptClient, beside, metrics, process_memory
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

_MODELS = {"resnet18": 224, "mobilenetv2": 224, "squeezenet1.1": 224}
_LIMIT, _STEP, _MB = 300_000_000, 20_000_000, 1e6
_BUDGET = "140MiB"
#: What a shrink may take, beside the longest request.
_WHOLE_SECONDS = 2.0
_LOOK_SECONDS = 0.01
_GROWS_SECONDS = 400.0
_FLAT_BYTES = 1 << 18


@dataclass
class Answers:
    """What clients got: how many answers, the longest delay, what was wrong."""

    count: int = 0
    longest: float = 0.0
    faults: list[str] = field(default_factory=list)


class Clients:
    """One connection a model, which asks the same again and again, while the block runs."""

    def __init__(self, port: int, repository: Path) -> None:
        self.answers, self._port, self._repository = Answers(), port, repository
        self._counting = threading.Lock()

    def ask(self, model: str, over: threading.Event) -> None:
        """Ask ``model`` until it is ``over``, with some pause between requests."""
        pack = open_pack(next((self._repository / model).iterdir()))
        (port,) = pack.manifest.inputs
        values = np.random.default_rng(0).standard_normal(port.shape, np.float32)
        body = infer_request(model, tensors_document({port.name: values}))
        head, _, content = body.partition(b"\r\n\r\n")
        path, client, first = head.split()[1].decode(), KeptClient(self._port), b""
        with contextlib.closing(client):
            while not over.wait(0.02):
                began = time.monotonic()
                try:
                    status, answer = client.ask("POST", path, content)
                    outputs = answer[answer.find(b'"outputs"') :]
                except OSError as exc:
                    status, outputs = 0, repr(exc).encode()
                first = first or outputs
                with self._counting:
                    self.answers.count += 1
                    self.answers.longest = max(self.answers.longest, time.monotonic() - began)
                    if status != 200 or outputs != first:
                        self.answers.faults.append(f"{model}: {status} {outputs[:80]!r}")


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
        self.held = 0

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
        self.held = n_bytes

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()


@dataclass
class Step:
    """One step of the neighbour: when memory began to go back and had gone, and how it went on."""

    given_bytes: int
    first_seconds: float
    whole_seconds: float
    rose_bytes: int


def watched(pid: int, base: str, signal: Any, seconds: float) -> Step:
    """Call ``signal``, and follow the anonymous memory of ``pid`` until it has gone back, or in vain."""
    before = process_memory(pid)["rss_anonymous_bytes"]
    changes = _lowered(base)
    signal()
    began, lowest, rose, first, last = time.monotonic(), before, 0, 0.0, 0.0
    while (now := time.monotonic() - began) < seconds:
        time.sleep(_LOOK_SECONDS)
        held = process_memory(pid)["rss_anonymous_bytes"]
        rose = max(rose, held - max(before, lowest)) if not first else max(rose, held - before)
        if held < lowest - (1 << 20):
            first, last, lowest = first or now, now, held
        if last and now - last > 1.0 and _lowered(base) > changes:
            break
    return Step(before - lowest, first, last, rose)


def _lowered(base: str) -> float:
    return metrics(base)['layerstream_ceiling_changes_total{direction="down"}']


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
        code = (
            "import mmap,sys\n"
            "m=mmap.mmap(open(sys.argv[1],'rb').fileno(),0,prot=mmap.PROT_READ)\n"
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
        served(group, repository, setting, **_pressure_environment(signal, Path(folder))) as found,
        contextlib.closing(Neighbour(group)) as neighbour,
    ):
        process, port = found
        base = f"http://127.0.0.1:{port}"
        clients = Clients(port, repository)
        works = [lambda over, model=model: clients.ask(model, over) for model in _MODELS]
        with beside(*works):
            time.sleep(5)
            largest = metrics(base)["layerstream_budget_used_bytes"]
            done = [
                _stepped(signal, process.pid, base, neighbour, Path(folder)) for _ in range(steps)
            ]
            smallest = metrics(base)["layerstream_budget_used_bytes"]
            neighbour.hold(0)
            grown_seconds = _grown(base, largest)
        answers = clients.answers
        killed = group.oom_kills
    effective = [step for step in done if step.given_bytes > 1 << 20]
    bound = _WHOLE_SECONDS + answers.longest
    return {
        "signal": signal,
        "steps": len(done),
        "given_back_mb": [round(step.given_bytes / _MB, 1) for step in done],
        "first_seconds": [round(step.first_seconds, 2) for step in done],
        "whole_seconds": [round(step.whole_seconds, 2) for step in done],
        "rose_mb": round(max(step.rose_bytes for step in done) / _MB, 2),
        "used_mb": [round(largest / _MB, 1), round(smallest / _MB, 1)],
        "grown_again_seconds": grown_seconds and round(grown_seconds),
        "answers": answers.count,
        "longest_seconds": round(answers.longest, 2),
        "faults": answers.faults[:5],
        "killed": killed,
        "holds": bool(effective)
        and not (answers.faults or killed)
        and grown_seconds is not None
        and all(step.whole_seconds <= bound for step in effective),
    }


def _stepped(signal: str, pid: int, base: str, neighbour: Neighbour, folder: Path) -> Step:
    if signal == "headroom":
        return watched(pid, base, lambda: neighbour.hold(neighbour.held + _STEP), 6)
    if signal == "events":
        # Less than what is given back, so that this signal alone is enough.
        neighbour.hold(neighbour.held + _STEP // 2)
        return watched(pid, base, lambda: (folder / "fifo").write_bytes(b"x"), 6)
    neighbour.hold(neighbour.held + _STEP // 2)
    with thrashing():
        return watched(pid, base, lambda: None, 8)


def _grown(base: str, n_bytes: float) -> float | None:
    """Return after how many seconds models use as much as before; None: they do not."""
    began = time.monotonic()
    while (now := time.monotonic() - began) < _GROWS_SECONDS:
        if metrics(base)["layerstream_budget_used_bytes"] >= 0.9 * n_bytes:
            return now
        time.sleep(1)
    return None


async def cycled(repository: Path, cycles: int) -> dict[str, Any]:
    """Return anonymous memory of this process after each of so many shrinks by 20 MB and growths."""
    settings = Settings(repository=repository, budget=parse_size(_BUDGET), memory_pressure="off")
    held = []
    async with Service(settings) as service:
        await service.loaded()
        await service.repository.at_rest()
        used_bytes = service.budget.used_bytes
        for _ in range(cycles):
            await service.repository.relieve(used_bytes - _STEP)
            service.repository.ease(service.budget.total_bytes)
            await service.repository.at_rest()
            held.append(anonymous_bytes())
    half = len(held) // 2
    rose = median(held[half:]) - median(held[: half or 1])
    return {
        "signal": "cycles",
        "cycles": cycles,
        "anonymous_mib": [round(n / 2**20, 2) for n in held[:: max(cycles // 10, 1)]],
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
    end(results, all(each["holds"] for each in results))


if __name__ == "__main__":
    main()
