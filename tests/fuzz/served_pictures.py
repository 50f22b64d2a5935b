"""Pictures to a server in a memory cgroup: ``python -m tests.fuzz.served_pictures [--count 2000]``.

Files as tests/fuzz/picture_files.py draws them go to ``layerstream serve --memory 128MB`` in a control
group of as much, with the shipped models, several at a time. Exit 1 if the kernel killed a process, the
server ended, an answer was neither right nor a refusal of what the client sent, or took longer than the
limit. What is right: the scores of ONNX Runtime for the picture that Pillow alone, in a process of its own,
makes of the file. Needs root, or a delegated cgroup.
"""

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from models import cells, default
from models.compiler import CompileOptions, compile_onnx
from models.images.preprocess import Preprocess, read_labels, read_preprocess
from models.sizes import parse_size
from pipeline.peers.cgroup import memory_group
from tests.fuzz.picture_files import Drawn, drawn
from tests.fuzz.pictures import reference
from tests.server.support import serving_port

_CLASSIFY, _DETECT = "/v2/models/cifar10:classify?top_k=1", "/v2/models/cells:detect"
# Of the reference, which decodes without our limits: of memory, and of seconds a file.
_REFERENCE_BYTES, _REFERENCE_SECONDS = 4 << 30, 20
_TOLERANCE = 1e-3
_OK, _DECODED_SMALLER = 200, "x-image-decoded"
_TIMEOUT_SECONDS = 60


@dataclass
class Outcome:
    """What came of all files."""

    statuses: Counter[str] = field(default_factory=Counter)
    slowest: list[tuple[float, int, str]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    compared: int = 0


class Expected:
    """The scores that the classifier of the shipped models gives for a picture."""

    def __init__(self) -> None:
        self._recipe: Preprocess = read_preprocess(default.FOLDER / "preprocess.toml")
        self._session = onnxruntime.InferenceSession(default.FOLDER / "cifar10.onnx")
        self._pool = get_context("spawn").Pool(1, _limit_memory, maxtasksperchild=200)

    def of(self, file: Drawn) -> list[float] | None:
        """Return the probabilities of all classes; None: Pillow makes no picture of the file."""
        work = self._pool.apply_async(_tensor, (file.plain or file.data, self._recipe))
        try:
            tensor = work.get(_REFERENCE_SECONDS)
        except Exception:  # noqa: BLE001  whatever Pillow raises, or the pool where it takes too long
            return None
        name = self._session.get_inputs()[0].name
        (scores,) = self._session.run(None, {name: tensor})
        powers = np.exp(scores[0] - scores[0].max())
        return list((powers / powers.sum()).tolist())

    def close(self) -> None:
        self._pool.terminate()


def _limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_REFERENCE_BYTES, _REFERENCE_BYTES))


def _tensor(data: bytes, recipe: Preprocess) -> Any:
    return recipe.apply(reference(data))


def _compile(folder: Path) -> None:
    """Compile the shipped models."""
    options = CompileOptions(
        preprocess=read_preprocess(default.FOLDER / "preprocess.toml"),
        labels=read_labels(default.FOLDER / "labels.txt"),
    )
    compile_onnx(default.FOLDER / "cifar10.onnx", folder / "cifar10", options)
    compile_onnx(cells.FOLDER / "detector.onnx", folder / "cells")


def _post(url: str, data: bytes) -> tuple[int, bytes, Mapping[str, str]]:
    request = urllib.request.Request(url, data=data, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:
            return answer.status, answer.read(), {k.lower(): v for k, v in answer.headers.items()}
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code, exc.read(), {}


def _drawn(seed: int) -> tuple[Drawn, str]:
    """Return the file of that ``seed``, and the path that it is sent to."""
    rng = random.Random(seed)
    file = drawn(rng)
    return file, _CLASSIFY if rng.random() < 0.7 else _DETECT


class Run:
    """Sends files to a server and judges its answers."""

    def __init__(self, url: str, expected: Expected, drawing: Pool, limit_seconds: float) -> None:
        self._url, self._expected, self._limit = url, expected, limit_seconds
        self._drawing, self._lock = drawing, threading.Lock()
        self.outcome = Outcome()

    def send(self, seed: int) -> None:
        """Send the file of that ``seed``."""
        # Elsewhere: a client that draws would send slowly.
        file, path = self._drawing.apply(_drawn, (seed,))
        started = time.monotonic()
        try:
            status, body, headers = _post(self._url + path, file.data)
        except OSError as exc:
            self._fault(seed, file, f"no answer: {exc!r}")
            return
        seconds = time.monotonic() - started
        with self._lock:
            kind = file.words.removeprefix("damaged ")
            self.outcome.statuses[f"{status} {kind}"] += 1
            self.outcome.slowest.append((seconds, seed, f"{status} {file.words}"))
        if seconds > self._limit:
            self._fault(seed, file, f"{status} after {seconds:.1f} s")
        if status == _OK and path == _CLASSIFY and _DECODED_SMALLER not in headers:
            self._compare(seed, file, json.loads(body))
        elif status != _OK and not 400 <= status < 500:
            self._fault(seed, file, f"{status} {body[:200]!r}")

    def _compare(self, seed: int, file: Drawn, answer: Any) -> None:
        with self._lock:  # one process decodes
            scores = self._expected.of(file)
        if scores is None:
            return
        self.outcome.compared += 1
        best = answer["predictions"][0]
        if abs(scores[best["index"]] - best["probability"]) > _TOLERANCE:
            self._fault(seed, file, f"{best} where ONNX Runtime has {scores}")

    def _fault(self, seed: int, file: Drawn, what: str) -> None:
        self.outcome.faults.append(f"{seed} ({file.words}, {len(file.data)} bytes): {what}")


def _served(repository: Path, memory: str, run: Any, log: Path) -> tuple[Any, list[str]]:
    """Return what ``run`` returns with the address of a server in a control group, and what went wrong."""
    faults = []
    with memory_group("layerstream-pictures", parse_size(memory)) as group, log.open("wb") as file:
        command = [sys.executable, "-m", "cli", "serve", "--repository", str(repository)]
        command += ["--memory", memory, "--port", "0", "--stall-timeout", "30"]
        with subprocess.Popen(group.inside(command), stderr=subprocess.PIPE) as server:
            try:
                port = serving_port(server)
                draining = threading.Thread(target=_drain, args=(server.stderr, file))
                draining.start()
                _wait_ready(f"http://127.0.0.1:{port}")
                result = run(f"http://127.0.0.1:{port}")
            finally:
                if server.poll() is not None:
                    faults.append(f"the server ended by {server.returncode}")
                server.terminate()
                server.wait()
        draining.join()
        print(f"peak {group.peak_bytes / 1e6:.1f} MB, {group.oom_kills} kills", flush=True)
        if group.oom_kills:
            faults.append(f"{group.oom_kills} processes killed for want of memory")
    return result, faults


def _drain(stream: Any, file: Any) -> None:
    for line in stream:
        file.write(line)


def _wait_ready(url: str) -> None:
    for _ in range(300):
        try:
            with urllib.request.urlopen(url + "/v2/health/ready", timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    raise SystemExit("the server does not get ready")


def _lines(outcome: Outcome) -> Iterator[str]:
    totals = Counter[str]()
    for name, count in sorted(outcome.statuses.items()):
        totals[name[:3]] += count
        yield f"  {count:5} {name}"
    yield f"answers by status: {dict(totals)}; {outcome.compared} compared with ONNX Runtime"
    for seconds, seed, words in sorted(outcome.slowest, reverse=True)[:8]:
        yield f"  {seconds:.2f} s: {seed} {words}"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--memory", default="128MB")
    parser.add_argument("--at-once", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="in which each is answered")
    options = parser.parse_args(arguments)
    expected = Expected()

    def run(url: str) -> Outcome:
        seeds = range(options.first, options.first + options.count)
        with ThreadPoolExecutor(options.at_once) as pool, get_context("spawn").Pool(2) as drawing:
            sending = Run(url, expected, drawing, options.seconds)
            for _ in pool.map(sending.send, seeds):
                pass
        return sending.outcome

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _compile(folder / "repository")
        outcome, faults = _served(folder / "repository", options.memory, run, folder / "log")
    expected.close()
    print(*_lines(outcome), sep="\n")
    faults += outcome.faults
    print(*faults, f"{len(faults)} faults in {options.count} files", sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
