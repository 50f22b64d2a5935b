"""The unmodified ``tritonclient[grpc]``, sync and aio, against a live server.

It needs protobuf below 7 and this project has 7: it gets an environment of its own.
``LAYERSTREAM_TRITON_PYTHON`` names one that is there.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.servers.served import free_port
from tests.server.clients.environments import programs, served
from tests.server.support import LIMIT_SECONDS, REQUEST_MEMORY, Packs

pytestmark = pytest.mark.slow

_CALLS = Path(__file__).with_name("triton_grpc_calls.py")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter that has the client."""
    folder = tmp_path_factory.mktemp("triton")
    variable = "LAYERSTREAM_TRITON_PYTHON"
    return programs(folder, "tritonclient[grpc]>=2.71", variable=variable) / "python"


@pytest.fixture
def port(packs: Packs) -> Iterator[int]:
    """A server with "tiny" and "pair" in a process of its own; its port for gRPC."""
    number = free_port()
    models = ("--model", "tiny", "--model", "pair", "--repository", str(packs.repository))
    budget = str(REQUEST_MEMORY + (64 << 20))
    with served(*models, "--grpc-port", str(number), "--budget", budget):
        yield number


def test_every_call(python: Path, port: int) -> None:
    done = subprocess.run(
        [python, _CALLS, str(port)],
        capture_output=True,
        text=True,
        check=False,
        timeout=4 * LIMIT_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == ["sync", "aio"]
