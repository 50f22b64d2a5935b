"""A real Prometheus scrapes a real server; every query of the dashboard returns data."""

import json
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from models.compiler import CompileOptions, compile_onnx
from models.default import FOLDER
from models.preprocess import read_labels, read_preprocess
from server.transport.listener import listen
from tests.deploy.test_deploy import PROMETHEUS, expressions_with_data, filled, tool

pytestmark = pytest.mark.tools

SECONDS = 60.0


def free_port() -> int:
    with listen("127.0.0.1", 0) as listener:
        return int(listener.getsockname()[1])


def fetch(url: str, body: bytes | None = None) -> Any:
    with urllib.request.urlopen(urllib.request.Request(url, body), timeout=10) as response:
        return json.load(response)


def until(condition: Callable[[], bool]) -> None:
    """Ask until it holds; fail after SECONDS."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        try:
            if condition():
                return
        except OSError:
            pass
        threading.Event().wait(0.2)
    pytest.fail("timed out")


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.terminate()
        process.wait(30)


def test_every_query_of_the_dashboard_returns_data(
    tmp_path: Path, processes: list[subprocess.Popen[bytes]]
) -> None:
    prometheus = tool("prometheus")
    options = CompileOptions(
        labels=read_labels(FOLDER / "labels.txt"),
        preprocess=read_preprocess(FOLDER / "preprocess.toml"),
    )
    compile_onnx(FOLDER / "cifar10.onnx", tmp_path / "repository" / "cifar10", options)
    port, monitor = free_port(), free_port()
    serve = ["serve", "--repository", f"{tmp_path}/repository", "--budget", "2560KiB"]
    processes.append(
        subprocess.Popen([sys.executable, "-m", "server.cli", *serve, "--port", str(port)])
    )
    text = (PROMETHEUS / "prometheus.yml").read_text().replace("15s", "1s")
    config = tmp_path / "prometheus.yml"
    config.write_text(text.replace("localhost:8080", f"localhost:{port}"))
    (tmp_path / "alerts.yml").write_text((PROMETHEUS / "alerts.yml").read_text())
    processes.append(
        subprocess.Popen(
            [
                prometheus,
                f"--config.file={config}",
                f"--storage.tsdb.path={tmp_path}/data",
                f"--web.listen-address=127.0.0.1:{monitor}",
                "--log.level=error",
            ]
        )
    )
    base = f"http://127.0.0.1:{port}"
    until(lambda: bool(fetch(f"{base}/v2/health/ready")["ready"]))
    photograph = (FOLDER / "cat.png").read_bytes()

    def results(expression: str) -> list[Any]:
        query = urllib.parse.urlencode({"query": filled(expression, "10s")})
        url = f"http://127.0.0.1:{monitor}/api/v1/query?{query}"
        found: list[Any] = fetch(url)["data"]["result"]
        return found

    missing: list[str] = []

    def complete() -> bool:
        fetch(f"{base}/v2/models/cifar10:classify", photograph)
        missing[:] = [text for text in expressions_with_data() if not has_data(results(text))]
        return not missing

    try:
        until(complete)
    finally:
        assert missing == []


def has_data(result: list[Any]) -> bool:
    return any(sample["value"][1] != "NaN" for sample in result)
