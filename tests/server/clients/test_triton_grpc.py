"""The unmodified ``tritonclient[grpc]``, sync and aio, against a live server.

It wants protobuf below 7 and this project has 7: it gets an environment of its own.
"""

import os
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.transport.listener import listen
from tests.server.support import LIMIT_SECONDS, REQUEST_MEMORY, Packs, serving_port

pytestmark = pytest.mark.slow

_CALLS = Path(__file__).with_name("triton_grpc_calls.py")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter that has the client; LAYERSTREAM_TRITON_PYTHON names one that is there."""
    given = os.environ.get("LAYERSTREAM_TRITON_PYTHON")
    if given:
        return given
    folder = tmp_path_factory.mktemp("triton")
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    installed = subprocess.run(
        [python, "-m", "pip", "install", "-q", "tritonclient[grpc]>=2.71"],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    if installed.returncode:
        pytest.skip(f"tritonclient[grpc] cannot be installed: {installed.stderr[-200:]}")
    return python


@pytest.fixture
def port(packs: Packs) -> Iterator[int]:
    """A server with "tiny" and "pair" in a process of its own; its port for gRPC."""
    with listen("127.0.0.1", 0) as free:
        number = free.getsockname()[1]
    models = ("--model", "tiny", "--model", "pair")
    ports = ("--port", "0", "--grpc-port", str(number))
    flags = (*models, *ports, "--budget", str(REQUEST_MEMORY + (64 << 20)))
    code = "from server.cli import main; main()"
    command = [sys.executable, "-c", code, "serve", "--repository", str(packs.repository), *flags]
    root = Path(__file__).parents[3]
    with subprocess.Popen(command, stderr=subprocess.PIPE, cwd=root) as server:
        try:
            serving_port(server)
            yield number
        finally:
            server.terminate()
            server.communicate(timeout=LIMIT_SECONDS)
    assert server.returncode in {0, -15}


def test_every_call(python: str, port: int) -> None:
    done = subprocess.run(
        [python, str(_CALLS), str(port)],
        capture_output=True,
        text=True,
        check=False,
        timeout=4 * LIMIT_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == ["sync", "aio"]
