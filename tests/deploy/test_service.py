"""The server as systemd sees it: a real socket, a real process, SIGTERM."""

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from benchmarks.servers.served import free_port
from models.compiler import compile_onnx
from models.default import FOLDER

SECONDS = 60.0


@pytest.fixture
def notify_socket(tmp_path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listener.bind(str(tmp_path / "notify"))
    listener.settimeout(SECONDS)
    return listener


@pytest.mark.slow
def test_ready_watchdog_and_stopping_arrive_in_order(
    tmp_path: Path, notify_socket: socket.socket
) -> None:
    compile_onnx(FOLDER / "cifar10.onnx", tmp_path / "repository" / "cifar10")
    port = free_port()
    command = [sys.executable, "-m", "cli", "serve", "--budget", "2816KiB"]
    process = subprocess.Popen(
        [*command, "--repository", f"{tmp_path}/repository", "--port", str(port)],
        env={
            **os.environ,
            "NOTIFY_SOCKET": str(tmp_path / "notify"),
            "WATCHDOG_USEC": "200000",
        },
        stderr=subprocess.DEVNULL,
    )
    try:
        seen = receive_until(notify_socket, "READY=1")
        with urllib.request.urlopen(
            f"http://127.0.0.1:{port}/v2/health/ready", timeout=10
        ) as answer:
            assert answer.status == 200
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            metrics = answer.read().decode()
        seen += receive_until(notify_socket, "WATCHDOG=1")
        process.send_signal(signal.SIGTERM)
        seen += receive_until(notify_socket, "STOPPING=1")
        assert process.wait(SECONDS) == 0
    finally:
        process.kill()
        process.wait()
        notify_socket.close()
    assert seen.index("READY=1") < seen.index("STOPPING=1")
    assert any(line.startswith("STATUS=serving cifar10 in ") for line in seen)
    # In its own process the engine's measured memory is within what was reserved for it.
    assert (
        0
        < total(metrics, "layerstream_memory_bytes{")
        <= total(metrics, "layerstream_budget_used_bytes")
    )
    assert total(metrics, "layerstream_budget_used_bytes") <= 2816 << 10


def total(metrics: str, prefix: str) -> float:
    return sum(float(line.split()[-1]) for line in metrics.splitlines() if line.startswith(prefix))


def receive_until(listener: socket.socket, wanted: str) -> list[str]:
    """Return the lines received up to the datagram with ``wanted``; times out by the socket."""
    lines: list[str] = []
    while wanted not in lines:
        lines += listener.recv(4096).decode().splitlines()
    return lines
