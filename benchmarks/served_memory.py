"""How much anonymous memory the service takes above base and budget, and whether changes make it grow.

Base is what the service says that it took before any model (``process_base_anonymous_bytes``), the rest is
the kernel's word for its process (Anonymous in smaps_rollup), every 15 ms. Clients speak HTTP and read
nothing else of ours. Cases, each in a fresh process, on six small networks:

- one: each alone in about its smallest budget, four connections
- six: all in 14 MiB
- evict: all in turn in 10 MiB (``--budget-policy evict-lru``), several times
- changes: these, and load, unload, replan and upload in any order; after each 25 changes all are unloaded,
  and what is left then is compared

Run as ``python -m benchmarks.served_memory [CASE...] [--changes 1000]``; exit 1 where a case takes over
1 MiB above base and budget, grows by more than 0.25 MiB in 1,000 changes, or fails. Beside other servers:
``benchmarks.tight_memory``.
"""

import argparse
import contextlib
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.load.messages import tensors_document
from benchmarks.machine.sampling import Sampler
from benchmarks.servers.client import KeptClient, metrics
from benchmarks.servers.served import Served, ours, running
from models import zoo
from models.compiler import compile_onnx
from pipeline.peers.cgroup import Usage

_MIB = 1 << 20
_ABOVE_BYTES = _MIB
_GROWTH_BYTES = _MIB // 4
_CIFAR10 = Path(__file__).parents[1] / "models" / "default" / "cifar10.onnx"
#: By name: the budget in which each is served alone, the network of the zoo, and its width.
_NETWORKS = {
    "cifar10": ("2MiB", "", 1.0),
    "darknet-tiny": ("6MiB", "darknet-tiny", 1.0),
    "mobilenetv1": ("5MiB", "mobilenetv1", 0.25),
    "mobilenetv2": ("6MiB", "mobilenetv2", 1.0),
    "squeezenet1.0": ("6MiB", "squeezenet1.0", 1.0),
    "squeezenet1.1": ("5MiB", "squeezenet1.1", 1.0),
}
#: Which model is evicted when depends on how requests meet: the worst run counts.
_EVICT_RUNS = 3
_EVICTS = ("--budget-policy", "evict-lru")
_ROUND = 25
#: The first rounds fill what is filled once.
_WARM_PART = 5
_CONNECTIONS = 4
#: What is right beside 200 while models change: they are unloaded, have no room, or were evicted.
WHILE_CHANGING: Mapping[str, Collection[str]] = {
    "infer": ("404", "409"),
    "metadata": ("404", "409"),
    "load": ("409",),
    "replan": ("404", "409"),
}
_METRIC = "layerstream_process_base_anonymous_bytes"


@dataclass
class CaseResult:
    """What a case took, in bytes; ``left`` with no model loaded, after so many changes."""

    case: str
    budget_bytes: int
    base_bytes: int = 0
    peak_bytes: int = 0
    end_bytes: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    left: list[tuple[int, int]] = field(default_factory=list)
    may: Mapping[str, Collection[str]] = field(default_factory=dict)

    @property
    def failed(self) -> list[str]:
        """What was not answered as it has to be: with 200, or as it ``may``."""
        return [
            key
            for key in self.statuses
            for kind, status in (key.split(),)
            if status not in ("200", *self.may.get(kind, ()))
        ]

    @property
    def growth_bytes(self) -> float:
        """Return by how much what is left grows in 1,000 changes, once the first fifth is over."""
        return 1000 * slope(self.left[len(self.left) // _WARM_PART :])

    @property
    def holds(self) -> bool:
        """Whether it is within the bounds, and nothing failed."""
        above = self.peak_bytes - self.base_bytes - self.budget_bytes
        return above <= _ABOVE_BYTES and self.growth_bytes <= _GROWTH_BYTES and not self.failed

    def line(self) -> str:
        """Return it in words."""
        room = self.base_bytes + self.budget_bytes
        said = (
            f"{self.case}: base {_mib(self.base_bytes)}, budget {_mib(self.budget_bytes)}: at most "
            f"{_mib(self.peak_bytes)} ({_mib(self.peak_bytes - room, '+')}), at the end "
            f"{_mib(self.end_bytes)} ({_mib(self.end_bytes - room, '+')})"
        )
        if self.left:
            above = [_mib(n_bytes - self.base_bytes, "+") for _, n_bytes in self.left]
            said += f"; {_mib(self.growth_bytes, '+')} in 1,000 changes; left: {' '.join(above)}"
        answers = ", ".join(f"{key}: {count}" for key, count in sorted(self.statuses.items()))
        return f"{said}; {answers}{'' if self.holds else '  DOES NOT HOLD'}"


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the slope of the line through ``points`` that has the least squares; 0 for fewer than two."""
    if len(points) < 2:
        return 0.0
    (mean_x, mean_y), x_y = np.mean(points, axis=0), np.asarray(points, float)
    x, y = x_y[:, 0] - mean_x, x_y[:, 1] - mean_y
    return float((x * y).sum() / (x * x).sum())


def _mib(n_bytes: float, sign: str = "") -> str:
    return f"{n_bytes / _MIB:{sign}.2f} MiB"


class MemoryClient:
    """Asks over one connection; ``statuses`` of what it asked."""

    def __init__(self, port: int, statuses: Counter[str]) -> None:
        self._client = KeptClient(port)
        self._statuses = statuses
        self._bodies: dict[str, bytes] = {}

    def call(self, kind: str, path: str, body: bytes | None = b"") -> bytes:
        """Post ``body``, or get where it is None; count the status as of ``kind``; return the answer."""
        status, answer = self._client.ask("GET" if body is None else "POST", path, body)
        self._statuses[f"{kind} {status}"] += 1
        return answer

    def infer(self, model: str) -> None:
        """Ask ``model`` with drawn numbers, as JSON; one that is not there has no inputs to ask with."""
        if model not in self._bodies and (body := self._drawn(model)):
            self._bodies[model] = body
        if model in self._bodies:
            self.call("infer", f"/v2/models/{model}/infer", self._bodies[model])

    def _drawn(self, model: str) -> bytes:
        """Return a request to ``model``; empty where the service does not describe its inputs now."""
        told = json.loads(self.call("metadata", f"/v2/models/{model}", None))
        if "inputs" not in told:
            return b""
        (port,) = told["inputs"]
        shape = [int(size) for size in port["shape"]]
        drawn = np.random.default_rng(0).random(shape).round(3)
        return json.dumps(tensors_document({port["name"]: drawn})).encode()

    def change(self, kind: str, model: str, body: bytes = b"") -> None:
        """Load, unload, replan or upload ``model``."""
        self.call(kind, f"/v2/repository/models/{model}/{kind}", body)


def anonymous_bytes(pid: int) -> int:
    """Return what no file backs of process ``pid``, exactly; raises OSError once it has ended."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) << 10
    raise ProcessLookupError(pid)


@contextlib.contextmanager
def _served(
    result: CaseResult, repository: Path, models: Sequence[str], *flags: str
) -> Iterator[Served]:
    """Serve ``models``; fill in ``result``'s figures of memory."""
    command = ours(repository, str(result.budget_bytes), "--models", ",".join(models), *flags)

    def look() -> Usage:
        return Usage(0, anonymous_bytes(served.pid), 0)

    with running(command, "--port") as served, Sampler(look) as sampler:
        result.base_bytes = int(metrics(served.base)[_METRIC])
        yield served
        result.end_bytes = anonymous_bytes(served.pid)
        result.peak_bytes = max(sample.usage.anonymous for sample in sampler.samples)


def _ask_all(served: Served, result: CaseResult, models: Sequence[str], requests: int) -> None:
    """Ask ``models`` at random over some connections, each so many ``requests``."""

    def ask(seed: int) -> None:
        client, draw = MemoryClient(served.port, result.statuses), random.Random(seed)
        for _ in range(requests):
            client.infer(draw.choice(models))

    with ThreadPoolExecutor(_CONNECTIONS) as threads:
        list(threads.map(ask, range(_CONNECTIONS)))


def _one(repository: Path, options: argparse.Namespace) -> Iterator[CaseResult]:
    for name, (budget, *_) in _NETWORKS.items():
        result = CaseResult(f"one, {name}", int(budget.removesuffix("MiB")) * _MIB)
        with _served(result, repository, [name]) as served:
            _ask_all(served, result, [name], options.requests)
        yield result


def _six(repository: Path, options: argparse.Namespace) -> Iterator[CaseResult]:
    result = CaseResult("six", 14 * _MIB)
    with _served(result, repository, [*_NETWORKS]) as served:
        _ask_all(served, result, [*_NETWORKS], options.requests)
    yield result


def _evict(repository: Path, options: argparse.Namespace) -> Iterator[CaseResult]:
    for run in range(1, _EVICT_RUNS + 1):
        result = CaseResult(f"evict, run {run}", 10 * _MIB)
        with _served(result, repository, [*_NETWORKS], *_EVICTS) as served:
            _ask_all(served, result, [*_NETWORKS], options.requests)
        yield result


def _changes(repository: Path, options: argparse.Namespace) -> Iterator[CaseResult]:
    result, draw = CaseResult("changes", 10 * _MIB, may=WHILE_CHANGING), random.Random(0)
    with _served(result, repository, [*_NETWORKS], *_EVICTS) as served:
        client = MemoryClient(served.port, result.statuses)
        for changes in range(1, options.changes + 1):
            if changes % _ROUND:
                _change(client, draw)
                continue
            client.change("upload", "uploaded", _CIFAR10.read_bytes())
            for name in (*_NETWORKS, "uploaded"):
                client.change("unload", name)
            result.left.append((changes, anonymous_bytes(served.pid)))
            for name in _NETWORKS:
                client.change("load", name)
    yield result


def _change(client: MemoryClient, draw: random.Random) -> None:
    """Change something at random; a request to what was evicted loads it and evicts another."""
    name, kind = draw.choice([*_NETWORKS]), draw.choice(("infer", "load", "replan", "unload"))
    if kind == "infer":
        client.infer(name)
    else:
        most = draw.choice((None, draw.randrange(_MIB, 6 * _MIB)))
        client.change(
            kind, name, json.dumps({"memory_bytes": most} if kind == "replan" else {}).encode()
        )


def _repository(folder: Path) -> Path:
    """Build and compile the networks; return where."""
    for name, (_, network, width) in _NETWORKS.items():
        source = _CIFAR10
        if network:
            source = folder / f"{name}.onnx"
            zoo.build(network, source, width=width)
        compile_onnx(source, folder / "repository" / name)
    return folder / "repository"


_CASES: Mapping[str, Callable[[Path, argparse.Namespace], Iterator[CaseResult]]] = {
    "one": _one,
    "six": _six,
    "evict": _evict,
    "changes": _changes,
}


def main() -> None:
    """Measure the cases and print a line of each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", choices=[*_CASES], default=[*_CASES])
    parser.add_argument("--changes", type=int, default=1000)
    parser.add_argument("--requests", type=int, default=50, help="of each connection")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=".") as text:
        folder = Path(text).resolve()
        held, repository = True, _repository(folder)
        for name in options.cases:
            for result in _CASES[name](repository, options):
                print(result.line(), flush=True)
                held &= result.holds
    sys.exit(0 if held else 1)


if __name__ == "__main__":
    main()
