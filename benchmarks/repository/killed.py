"""Kill -9 while models come and go: whole models only, and nothing left behind after the next start?

A service on a small repository loads, unloads and reloads, takes uploads and packs that are compiled or put
there, all at once, and is killed at a random moment, with what compiles. Looked at then: every version that
can be seen is whole to the last byte, and no process of it lives on. Then it starts again: nothing hidden
is left, every model answers.

Run as ``python -m benchmarks.repository.killed [--rounds 100] [--first SEED] [--only KIND...]``; KIND: what
clients do, compile, upload, load, unload or copy. Exit 1 at the first fault, whose seed is named.
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
import subprocess
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
from models.atomic_folders import PREFIX
from models.compiler import compile_onnx
from models.packs.folders import versions
from models.processes import CODE, child_environment, python_command
from server.repository.on_disk import check_whole, model_names

_SOURCE = Path(__file__).parents[2] / "models" / "default" / "cifar10.onnx"
_MODELS = ("first", "second")
#: Room for one of the models and little more, so that they take turns.
_FLAGS = ("--model-control", "poll", "--poll-interval", "0.1", "--budget-policy", "evict-lru")
_BUDGET = "4MiB"
#: An upload takes two seconds, two at once four, and more on a busy machine: the kill falls into all of it.
_LONGEST_SECONDS = 10.0
_END_SECONDS = 20.0
_COMPILE_SECONDS = 6.0
_GONE = (urllib.error.URLError, http.client.HTTPException, OSError)


# Processes that work for the service: they are told of the repository by it alone.
_CHILD = b"server.repository.limited_process"
_CODE_PATH = f"PYTHONPATH={CODE}\0".encode()


class LeftBehindError(Exception):
    """Something is there that should not be, or the other way round."""


def make_repository(folder: Path) -> Path:
    """Return a repository in ``folder`` with two models."""
    for name in _MODELS:
        compile_onnx(_SOURCE, folder / "repository" / name)
    return folder / "repository"


def round_of(seed: int, repository: Path, only: Sequence[str] = ()) -> Counter[str]:
    """Change things, kill the service, look, start it again, look; return what was done how often.

    ``only``: the kinds of clients; none: all.

    Raises:
        LeftBehindError: what was found.
    """
    rng, counts = random.Random(seed), Counter[str]()
    with contextlib.suppress(*_GONE), running(_command(repository), "--port") as served:
        after = rng.uniform(0.0, _LONGEST_SECONDS)
        with _busy(served, repository, rng, counts, only):
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
    served: Served,
    repository: Path,
    rng: random.Random,
    counts: Counter[str],
    only: Sequence[str],
) -> Iterator[None]:
    """Have several clients change what is served, until the service is gone; ``counts`` what they do."""
    all_kinds: list[tuple[str, Callable[[random.Random], None]]] = [
        ("upload of a new model", lambda _: _upload(served.base, "third")),
        (
            "upload of a version",
            lambda private_rng: _upload(served.base, private_rng.choice(_MODELS)),
        ),
        ("load", lambda private_rng: _load(served.base, private_rng.choice(_MODELS))),
        ("unload", lambda private_rng: _unload(served.base, private_rng.choice(_MODELS))),
        ("copy", lambda private_rng: _copy(repository, private_rng)),
        ("compile", lambda private_rng: _compile(repository, private_rng)),
    ]
    kinds = [kind for kind in all_kinds if not only or kind[0].split()[0] in only]
    seeds = [rng.random() for _ in kinds]

    def work(
        kind: str, act: Callable[[random.Random], None], seed: float, over: threading.Event
    ) -> None:
        private_rng = random.Random(seed)
        while not over.is_set():
            try:
                act(private_rng)
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


def _load(base: str, name: str) -> None:
    """Load a model, for which the other one goes, and ask it."""
    _post(f"{base}/v2/repository/models/{name}/load")
    _infer(base, name)


def _unload(base: str, name: str) -> None:
    """Unload a model, and load it again, so that there is one to unload."""
    _post(f"{base}/v2/repository/models/{name}/unload")
    _post(f"{base}/v2/repository/models/{name}/load")


class _KilledError(OSError):
    """A compilation was killed before it ended."""


def _compile(repository: Path, rng: random.Random) -> None:
    """Compile a model into the repository, in place of what is there, and kill that at a random moment."""
    command = python_command("cli", "compile", str(_SOURCE), "-o", str(repository / "fourth"))
    with subprocess.Popen(
        [*command, "--force"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=child_environment(),
    ) as process:
        try:
            process.wait(rng.uniform(0.0, _COMPILE_SECONDS))
        except subprocess.TimeoutExpired:
            process.kill()
            raise _KilledError from None


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
            process_id, command = int(file.parent.name), file.read_bytes()
            is_child = _CHILD in command and _CODE_PATH in (file.parent / "environ").read_bytes()
            if process_id != os.getpid() and (str(repository).encode() in command or is_child):
                yield process_id


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
    kinds = ("compile", "upload", "load", "unload", "copy")
    parser.add_argument("--only", nargs="+", choices=kinds, default=())
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        repository, counts = make_repository(Path(folder)), Counter[str]()
        for seed in itertools.islice(itertools.count(chosen.first), chosen.rounds):
            try:
                counts += round_of(seed, repository, chosen.only)
            except Exception as exc:  # noqa: BLE001  whatever it is, it is named
                print(f"round {seed} found: {type(exc).__name__}: {exc}", file=sys.stderr)
                return 1
    for kind, count in sorted(counts.items()):
        print(f"{count:6} x {kind}")
    print(f"{chosen.rounds} rounds: whole models only, nothing left behind")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
