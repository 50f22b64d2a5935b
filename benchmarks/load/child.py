"""Load from a process of its own, so that making it takes no time from the process that compares servers.

The child reads one job a line on its standard input and answers each with one line of JSON.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.load.arrivals import ArrivalRate, open_loop
from benchmarks.load.closed import closed_loop
from benchmarks.load.paced import paced_loop
from models.processes import child_environment, python_command


class LoadProcess:
    """The process; one job at a time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            python_command("benchmarks.load.child"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=child_environment(),
        )

    def closed(
        self,
        port: int,
        requests: Path | Sequence[Path],
        clients: int,
        seconds: float,
        deadline: float | None = None,
    ) -> dict[str, Any]:
        """Return ``closed_loop`` of the requests in files."""
        job = {"port": port, "clients": clients, "seconds": seconds, "deadline": deadline}
        return self._do({"loop": "closed", "requests": _names(requests), **job})

    def open(self, port: int, requests: Path | Sequence[Path], **job: Any) -> dict[str, Any]:
        """Return ``open_loop`` of the requests in files; ``job`` has the fields of ``ArrivalRate``."""
        return self._do({"loop": "open", "requests": _names(requests), "port": port, **job})

    def paced(
        self, port: int, request: Path, clients: int, seconds: float, **more: Any
    ) -> dict[str, Any]:
        """Return ``paced_loop`` of the request in a file."""
        job = {"port": port, "clients": clients, "seconds": seconds, **more}
        return self._do({"loop": "paced", "request": str(request), **job})

    def _do(self, job: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the load's process ended with {self._process.wait()}")
        result: dict[str, Any] = json.loads(line)
        return result

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()


def _names(files: Path | Sequence[Path]) -> list[str]:
    return [str(file) for file in ([files] if isinstance(files, Path) else files)]


def _answer(job: dict[str, Any]) -> dict[str, Any]:
    loop = job.pop("loop")
    if loop == "paced":
        job["request"] = Path(job["request"]).read_bytes()
        return paced_loop(**job)
    job["requests"] = tuple(Path(file).read_bytes() for file in job["requests"])
    if loop == "closed":
        return closed_loop(**job)
    return open_loop(
        ArrivalRate(**{**job, "addresses": tuple(job.get("addresses", ("127.0.0.1",)))})
    )


if __name__ == "__main__":
    for _line in sys.stdin:
        print(json.dumps(_answer(json.loads(_line))), flush=True)
