"""Servers to measure: ours and the peer, started, waited for and ended."""

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.client import wait_ready
from benchmarks.served_memory import free_port


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


def ours(repository: Path, budget: str, *flags: str) -> list[str]:
    """Return the command, less its port, that serves ``repository`` in ``budget``."""
    command = [sys.executable, "-m", "server.cli", "serve", "--repository", str(repository)]
    return [*command, "--budget", budget, *flags]


@contextlib.contextmanager
def running(command: list[str], *port_flag: str) -> Iterator[Served]:
    """Start ``command`` on a free port, given after ``port_flag`` or alone; its log goes to a file.

    Raises:
        RuntimeError: it did not become ready.
    """
    port = free_port()
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [*command, *port_flag, str(port)], stdout=subprocess.DEVNULL, stderr=log, text=True
        )
        served = Served(process, port)
        try:
            if not wait_ready(served.base, process):
                log.seek(0)
                raise RuntimeError(f"the server did not start: {log.read()[-2000:]}")
            yield served
        finally:
            process.terminate()
            try:
                process.wait(40)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
