"""A server and a Prometheus that watches it by our rules, both real, for tests."""

import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.servers.served import free_port
from models.compiler import CompileOptions, compile_onnx
from models.default import FOLDER
from models.images.preprocess import read_labels, read_preprocess
from pipeline.peers.cgroup import MemoryGroup
from tests.deploy.test_deploy import PROMETHEUS, tool

SECONDS = 60.0
PHOTOGRAPH = FOLDER / "cat.png"


def fetch(url: str, body: bytes | None = None) -> Any:
    with urllib.request.urlopen(urllib.request.Request(url, body), timeout=10) as response:
        return json.load(response)


def until(condition: Callable[[], bool], seconds: float = SECONDS) -> None:
    """Ask until it holds; fail after ``seconds``."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if condition():
                return
        except OSError:
            pass
        threading.Event().wait(0.2)
    pytest.fail("timed out")


def compile_default(folder: Path) -> None:
    """Compile the network of the package, which classifies, into ``folder``."""
    options = CompileOptions(
        labels=read_labels(FOLDER / "labels.txt"),
        preprocess=read_preprocess(FOLDER / "preprocess.toml"),
    )
    compile_onnx(FOLDER / "cifar10.onnx", folder, options)


def profile(pack: Path, *more: str) -> None:
    """Measure ``pack`` on this machine, in a few seconds."""
    command = [sys.executable, "-m", "cli", "profile", *more, str(pack)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)


def shortened(rules: str) -> str:
    """Rules that fire after seconds where ``rules`` ask for minutes, and after fewer sweeps."""
    rules = re.sub(r"for: \d+m", "for: 2s", rules)
    rules = re.sub(r">= 10\b", ">= 2", rules)
    return re.sub(r"\[\d+m\]", "[10s]", rules)


@dataclass
class Watched:
    """``base``: of the server. ``monitor``: of Prometheus."""

    server: subprocess.Popen[bytes]
    base: str
    monitor: str

    def query(self, expression: str) -> list[Any]:
        """Return the result of a PromQL expression."""
        query = urllib.parse.urlencode({"query": expression})
        found: list[Any] = fetch(f"{self.monitor}/api/v1/query?{query}")["data"]["result"]
        return found

    def fired(self, seconds: float) -> set[str]:
        """Return the names of the alerts that fired within the last ``seconds``."""
        found = self.query(f'max_over_time(ALERTS{{alertstate="firing"}}[{seconds:.0f}s])')
        return {sample["metric"]["alertname"] for sample in found}

    def is_watched(self) -> bool:
        """Whether the server has been scraped."""
        return bool(self.query('up{job="layerstream"} == 1'))

    def classify(self) -> int:
        """Send the photograph; return the status of the answer."""
        return self.post("/v2/models/cifar10:classify", PHOTOGRAPH.read_bytes())

    def post(self, path: str, body: bytes) -> int:
        """Post ``body``; return the status of the answer."""
        try:
            fetch(f"{self.base}{path}", body)
        except urllib.error.HTTPError as exc:
            return exc.code
        return 200

    @contextmanager
    def under_load(
        self, send: Callable[[], int], connections: int = 8, pause: float = 0.0
    ) -> Iterator[list[int]]:
        """Call ``send`` in ``connections`` threads, ``pause`` seconds apart; yield the statuses."""
        statuses: list[int] = []
        ended = threading.Event()

        def work() -> None:
            while not ended.wait(pause):
                try:
                    statuses.append(send())
                except OSError:
                    ended.wait(0.1)  # the server may be what is broken

        threads = [threading.Thread(target=work) for _ in range(connections)]
        for thread in threads:
            thread.start()
        try:
            yield statuses
        finally:
            ended.set()
            for thread in threads:
                thread.join()


@contextmanager
def watched(
    folder: Path,
    *settings: str,
    module: str = "cli",
    environment: dict[str, str] | None = None,
    group: MemoryGroup | None = None,
) -> Iterator[Watched]:
    """Serve ``folder``/repository by the command ``module``, scraped every second, rules shortened.

    ``group``: in which the server is.
    """
    prometheus = tool("prometheus")
    port, monitor = free_port(), free_port()
    with ExitStack() as stack:

        def start(*command: str) -> subprocess.Popen[bytes]:
            process = subprocess.Popen(command, env={**os.environ, **(environment or {})})
            stack.callback(process.wait, 30)
            stack.callback(process.terminate)
            return process

        repository = f"--repository={folder}/repository"
        command = [sys.executable, "-m", module, "serve", repository, f"--port={port}", *settings]
        server = start(*(command if group is None else group.inside(command)))
        text = (PROMETHEUS / "prometheus.yml").read_text().replace("15s", "1s")
        (folder / "prometheus.yml").write_text(text.replace("localhost:8080", f"localhost:{port}"))
        for name in ("alerts.yml", "fleet.yml"):
            (folder / name).write_text(shortened((PROMETHEUS / name).read_text()))
        start(
            prometheus,
            f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address=127.0.0.1:{monitor}",
            "--log.level=error",
        )
        found = Watched(server, f"http://127.0.0.1:{port}", f"http://127.0.0.1:{monitor}")
        until(lambda: fetch(f"{found.base}/v2/health/ready")["ready"] and found.is_watched())
        yield found
