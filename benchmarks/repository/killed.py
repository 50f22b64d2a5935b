"""Kill -9 while models come and go: whole models only, and nothing left behind after the next start?

A service on a small repository loads, unloads and reloads, takes uploads and packs that are put there, all
at once, and is killed at a random moment. Looked at then: every version that can be seen is whole to the
last byte, and no process of it lives on. Then it starts again: nothing hidden is left, every model answers.

Run as ``python -m benchmarks.repository.killed [--rounds 100] [--first SEED]``; exit 1 at the first fault,
whose seed is named.
"""

import argparse
import contextlib
import http.client
import itertools
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import urllib.error
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from urllib.request import Request, urlopen

from benchmarks.servers.client import beside
from benchmarks.servers.served import Served, ours, running
from models.compiler import compile_onnx
from models.packs.folders import PREFIX, versions
from server.repository.on_disk import check_whole, model_names

_SOURCE = Path(__file__).parents[2] / "models" / "default" / "cifar10.onnx"
_MODELS = ("first", "second")
#: Room for one of the models and little more, so that they take turns.
_FLAGS = ("--model-control", "poll", "--poll-interval", "0.1", "--budget-policy", "evict-lru")
_BUDGET = "4MiB"
#: An upload takes two seconds, two at once four, and more on a busy machine: the kill falls into all of it.
_LONGEST_SECONDS = 10.0
_END_SECONDS = 20.0
_GONE = (urllib.error.URLError, http.client.HTTPException, OSError)


class LeftBehindError(Exception):
    """Something is there that should not be, or the other way round."""


def make_repository(folder: Path) -> Path:
    """Return a repository in ``folder`` with two models."""
    for name in _MODELS:
        compile_onnx(_SOURCE, folder / "repository" / name)
    return folder / "repository"


def round_of(seed: int, repository: Path) -> Counter[str]:
    """Change things, kill the service, look, start it again, look; return what was done how often.

    Raises:
        LeftBehindError: what was found.
    """
    rng, counts = random.Random(seed), Counter[str]()
    with contextlib.suppress(*_GONE), running(_command(repository), "--port") as served:
        after = rng.uniform(0.0, _LONGEST_SECONDS)
        with _busy(served, repository, rng, counts):
            time.sleep(after)
            served.process.kill()
        served.process.wait()
    _check_alone(repository)
    _check_whole(repository)
    with running(_command(repository), "--port") as served:
        _check_clean(repository)
        for name in model_names(repository):
            _infer(served.base, name)
        served.process.send_signal(signal.SIGTERM)
        served.process.wait(_END_SECONDS)
    _keep_few(repository)
    return counts


def _command(repository: Path) -> list[str]:
    return ours(repository, _BUDGET, *_FLAGS)


@contextlib.contextmanager
def _busy(
    served: Served, repository: Path, rng: random.Random, counts: Counter[str]
) -> Iterator[None]:
    """Have several clients change what is served, until the service is gone; ``counts`` what they do."""
    seeds = [rng.random() for _ in range(4)]
    kinds: list[tuple[str, Callable[[random.Random], None]]] = [
        ("upload of a new model", lambda _: _upload(served.base, "third")),
        ("upload of a version", lambda own: _upload(served.base, own.choice(_MODELS))),
        ("load or unload", lambda own: _load(served.base, own)),
        ("copy", lambda own: _copy(repository, own)),
    ]

    def work(
        kind: str, act: Callable[[random.Random], None], seed: float, over: threading.Event
    ) -> None:
        own = random.Random(seed)
        while not over.is_set():
            try:
                act(own)
            except _GONE:
                counts[f"{kind}, refused or cut off"] += 1
            else:
                counts[kind] += 1

    clients = [partial(work, *kind, seed) for kind, seed in zip(kinds, seeds, strict=True)]
    with beside(*clients, seconds=_END_SECONDS):
        yield


def _post(url: str, body: bytes = b"") -> bytes:
    with urlopen(Request(url, body, method="POST"), timeout=_END_SECONDS) as answer:
        found: bytes = answer.read()
        return found


def _upload(base: str, name: str) -> None:
    _post(f"{base}/v2/repository/models/{name}/upload", _SOURCE.read_bytes())


def _load(base: str, rng: random.Random) -> None:
    verb, name = rng.choice(("load", "unload")), rng.choice(_MODELS)
    _post(f"{base}/v2/repository/models/{name}/{verb}")
    _infer(base, rng.choice(_MODELS))


def _copy(repository: Path, rng: random.Random) -> None:
    """Put a new version of a model there, all at once, as a compilation does."""
    folder = repository / rng.choice(_MODELS)
    there = versions(folder)
    hidden = folder / f"{PREFIX}by-hand"
    shutil.copytree(there[0], hidden)
    with contextlib.suppress(OSError):  # an upload has taken the number
        hidden.rename(folder / str(int(there[-1].name) + 1))
    shutil.rmtree(hidden, ignore_errors=True)
    time.sleep(rng.uniform(0.0, 0.3))


def _infer(base: str, name: str) -> None:
    zeros = {"name": "image", "datatype": "FP32", "shape": [1, 3, 32, 32], "data": [0.0] * 3072}
    answer = json.loads(
        _post(f"{base}/v2/models/{name}/infer", json.dumps({"inputs": [zeros]}).encode())
    )
    if len(answer["outputs"][0]["data"]) != 10:
        raise LeftBehindError(f"{name} answers {answer}")


def _check_alone(repository: Path) -> None:
    """Check that no process works on the repository any more: those that compile go with the service."""
    until = time.monotonic() + _END_SECONDS
    while found := list(_processes(repository)):
        if time.monotonic() > until:
            raise LeftBehindError(f"processes live on: {found}")
        time.sleep(0.01)


def _processes(repository: Path) -> Iterator[int]:
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if (
                int(file.parent.name) != os.getpid()
                and str(repository).encode() in file.read_bytes()
            ):
                yield int(file.parent.name)


def _check_whole(repository: Path) -> None:
    for name in model_names(repository):
        for pack in versions(repository / name):
            check_whole(pack)


def _check_clean(repository: Path) -> None:
    """Check that nothing is there but models with packs."""
    for folder in repository.iterdir():
        if not folder.is_dir() or not versions(folder):
            raise LeftBehindError(f"left behind: {folder}")
        for path in folder.iterdir():
            if not path.name.isdecimal():
                raise LeftBehindError(f"left behind: {path}")


def _keep_few(repository: Path) -> None:
    """Remove old versions, so that the disk does not fill."""
    for name in model_names(repository):
        for pack in versions(repository / name)[:-2]:
            shutil.rmtree(pack)


def main(arguments: Sequence[str]) -> int:
    """Play rounds; return the exit status."""
    parser = argparse.ArgumentParser(prog="benchmarks.repository.killed")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        repository, counts = make_repository(Path(folder)), Counter[str]()
        for seed in itertools.islice(itertools.count(chosen.first), chosen.rounds):
            try:
                counts += round_of(seed, repository)
            except Exception as exc:  # noqa: BLE001  whatever it is, it is named
                print(f"round {seed} found: {type(exc).__name__}: {exc}", file=sys.stderr)
                return 1
    for kind, count in sorted(counts.items()):
        print(f"{count:6} x {kind}")
    print(f"{chosen.rounds} rounds: whole models only, nothing left behind")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
