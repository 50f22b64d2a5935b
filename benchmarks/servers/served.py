"""Servers to measure: ours and the peers, started, waited for and ended."""

import contextlib
import random
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.servers.client import wait_ready
from models.processes import child_environment, python_command
from server.transport.listener import PortError, listen

_FIRST_PORT = 10_000
_READY_SECONDS = 120.0
_STOP_SECONDS = 40.0


class NotReadyError(RuntimeError):
    """The server ended, or was ``slow``, before it was ready; the message has the end of its log."""

    def __init__(self, log: str, slow: bool) -> None:
        super().__init__(f"the server did not start: {log}")
        self.slow = slow


@dataclass(frozen=True)
class Served:
    """A server that is ready on a port of 127.0.0.1."""

    process: subprocess.Popen[str]
    port: int

    @property
    def pid(self) -> int:
        """Return the process that answers."""
        return self.process.pid

    @property
    def base(self) -> str:
        """Return the start of its URLs."""
        return f"http://127.0.0.1:{self.port}"


def free_port() -> int:
    """Return a loopback port that nothing listens on.

    It lies below those that the kernel gives to clients, so none of them takes it meanwhile.
    """
    ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(_FIRST_PORT, max(ephemeral, 2 * _FIRST_PORT))
        with contextlib.suppress(PortError), listen("127.0.0.1", port):
            return port


def ours(repository: Path, budget: str, *flags: str) -> list[str]:
    """Return the command, less its port, that serves ``repository`` in ``budget``."""
    command = python_command("cli", "serve", "--repository", str(repository))
    return [*command, "--budget", budget, *flags]


def peer(model: Path, runtime: str = "onnxruntime", style: str = "plain") -> list[str]:
    """Return the command, less its port, that serves the file ``model`` as most would, in a ``style``."""
    module = "benchmarks.children.peer_server"
    return [*python_command(module, "--runtime", runtime, "--style", style), str(model)]


@contextlib.contextmanager
def running(
    command: Sequence[str],
    *port_flag: str,
    ready_seconds: float = _READY_SECONDS,
    stop_seconds: float = _STOP_SECONDS,
) -> Iterator[Served]:
    """Start ``command`` on a free port, given after ``port_flag`` or alone; its log goes to a file.

    Raises:
        NotReadyError: it did not become ready in time.
    """
    port = free_port()
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [*command, *port_flag, str(port)],
            stdout=subprocess.DEVNULL,
            stderr=log,
            text=True,
            env=child_environment(),
        )
        served = Served(process, port)
        try:
            if not wait_ready(served.base, process, ready_seconds):
                slow = process.poll() is None
                log.seek(0)
                raise NotReadyError(log.read()[-2000:], slow)
            yield served
        finally:
            process.terminate()
            try:
                process.wait(stop_seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
