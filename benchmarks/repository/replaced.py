"""A model is replaced again and again under clients that keep their connections: is any request lost?

A service follows its repository (``--model-control poll``). Its model is replaced, in turn, by a version
with the next number and by another pack under the same one. Clients ask all the while, each over one
connection: every answer must come, over that connection, and be that of one of the two packs.

Run as ``python -m benchmarks.repository.replaced [--times 50] [--budget 16MiB]``; exit 1 where one is lost.
In 4MiB there is room for one pack at a time: requests wait while they change places.
"""

import argparse
import http.client
import json
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from benchmarks.load.messages import tensors_document
from benchmarks.servers.client import KeptClient, beside, first_output
from benchmarks.servers.served import ours, running
from models.atomic_folders import locked_folder, put_in_place
from models.compiler import compile_onnx
from models.runtime.sessions import open_resident

_SOURCE = Path(__file__).parents[2] / "models" / "default" / "cifar10.onnx"
_NAME = "model"
_INFER = f"/v2/models/{_NAME}/infer"
# Time limits are not the question, and go on where the machine stands still.
_LIMITS = ("--request-timeout", "600", "--stall-timeout", "600")
_FLAGS = ("--model-control", "poll", "--poll-interval", "0.1", *_LIMITS)
_CLIENTS = 4
_LIMIT_SECONDS = 600.0
_BEAT_SECONDS = 0.1
_INPUT = np.random.default_rng(0).standard_normal((1, 3, 32, 32)).astype(np.float32)

Answer = NDArray[Any]


class LostError(Exception):
    """A request was not answered, or not rightly; or a replacement was not taken."""


@dataclass(frozen=True)
class Recipe:
    """A pack, and what it answers."""

    pack: Path
    answer: Answer


def make_recipes(folder: Path) -> tuple[Recipe, Recipe]:
    """Return two packs of the same shape in ``folder`` that answer differently."""
    other = onnx.load(_SOURCE)
    for weight in other.graph.initializer:
        weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * 0.5, weight.name))
    onnx.save(other, folder / "other.onnx")
    first, second = (
        _recipe(source, folder / source.stem) for source in (_SOURCE, folder / "other.onnx")
    )
    return first, second


def _recipe(source: Path, folder: Path) -> Recipe:
    compile_onnx(source, folder)
    return Recipe(folder / "1", open_resident(str(source)).run(None, {"image": _INPUT})[0].ravel())


class ReplacementClient:
    """Asks over one connection; ``fault``: what went wrong, empty while nothing did."""

    def __init__(self, port: int, answers: Sequence[Answer]) -> None:
        self._client = KeptClient(port, _LIMIT_SECONDS)
        self._client.connection.connect()
        self._socket = self._client.connection.sock
        self._answers = answers
        self._body = json.dumps(tensors_document({"image": _INPUT})).encode()
        self.count = 0
        self.longest_seconds = 0.0
        self.fault = ""

    def run(self, ended: threading.Event) -> None:
        """Ask until it is ``ended``, or something went wrong."""
        try:
            while not ended.is_set() and not self.fault:
                self.ask()
        except (OSError, http.client.HTTPException, LostError) as exc:
            self.fault = f"{type(exc).__name__}: {exc}"

    def ask(self) -> int:
        """Return which of the answers comes.

        Raises:
            LostError: none of them, or over another connection.
        """
        began = time.perf_counter()
        status, said = self._client.ask("POST", _INFER, self._body)
        self.longest_seconds = max(self.longest_seconds, time.perf_counter() - began)
        if status != 200:
            raise LostError(f"{status}: {said[:200]!r}")
        if self._client.connection.sock is not self._socket:
            raise LostError("the server has closed the connection")
        got = first_output(said)
        for number, answer in enumerate(self._answers):
            if np.allclose(got, answer, rtol=1e-4, atol=1e-4):
                self.count += 1
                return number
        raise LostError(f"a wrong answer: {got}")

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


@contextmanager
def _asking(port: int, answers: Sequence[Answer]) -> Iterator[list[ReplacementClient]]:
    """Have clients ask meanwhile.

    Raises:
        LostError: one of them lost a request.
    """
    clients = [ReplacementClient(port, answers) for _ in range(_CLIENTS)]
    with beside(*(each.run for each in clients), seconds=_LIMIT_SECONDS):
        yield clients
    for each in clients:
        each.close()
    if faults := [each.fault for each in clients if each.fault]:
        raise LostError("; ".join(faults))


class Standstill:
    """How long this process stood still at most: then the server did, too, and its time limits went on."""

    def __init__(self) -> None:
        self.longest_seconds = 0.0

    def watch(self, over: threading.Event) -> None:
        """Watch until it is ``over``."""
        before = time.monotonic()
        while not over.wait(_BEAT_SECONDS):
            now = time.monotonic()
            self.longest_seconds = max(self.longest_seconds, now - before - _BEAT_SECONDS)
            before = now

    def said(self) -> str:
        """Return what was seen, in words."""
        return f"stood still for {self.longest_seconds:.1f} s at most"


def _replace(folder: Path, pack: Path, number: int) -> None:
    """Put ``pack`` into ``folder`` as version ``number`` in one step; what was there goes."""
    with locked_folder(folder, str(number)) as hidden:
        shutil.copytree(pack, hidden / str(number))
        put_in_place(hidden / str(number), folder / str(number))


def _wait_for(probe: ReplacementClient, wanted: int) -> None:
    until = time.monotonic() + _LIMIT_SECONDS
    while probe.ask() != wanted:
        if time.monotonic() > until:
            raise LostError("a replacement was not taken")


def play(folder: Path, times: int, budget: str) -> str:
    """Replace the model ``times`` times; return what was counted.

    Raises:
        LostError: a request was lost.
    """
    recipes, model = make_recipes(folder), folder / "repository" / _NAME
    answers = [recipe.answer for recipe in recipes]
    _replace(model, recipes[0].pack, 1)
    began = time.monotonic()
    with running(ours(model.parent, budget, *_FLAGS), "--port") as served:
        probe = ReplacementClient(served.port, answers)
        with _asking(served.port, answers) as clients:
            for turn in range(1, times + 1):
                _replace(model, recipes[turn % 2].pack, 1 + (turn + 1) // 2)
                _wait_for(probe, turn % 2)
        probe.close()
    count, longest = sum(each.count for each in clients), max(e.longest_seconds for e in clients)
    return (
        f"{times} replacements in {time.monotonic() - began:.0f} s in {budget}: {count} requests of "
        f"{_CLIENTS} clients answered, none lost; the longest took {1e3 * longest:.0f} ms"
    )


def main(arguments: Sequence[str]) -> int:
    """Replace a model under its clients; return the exit status."""
    parser = argparse.ArgumentParser(prog="benchmarks.repository.replaced")
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--budget", default="16MiB")
    chosen = parser.parse_args(arguments)
    standstill = Standstill()
    with tempfile.TemporaryDirectory() as folder, beside(standstill.watch):
        try:
            print(play(Path(folder), chosen.times, chosen.budget), f"({standstill.said()})")
        except LostError as exc:
            print(f"benchmarks.repository.replaced: {exc} ({standstill.said()})", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
