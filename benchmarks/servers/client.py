"""Clients with the standard library alone, for benchmarks."""

import contextlib
import http.client
import json
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


class KeptClient:
    """One kept connection that waits for its answers; it opens again where it was closed."""

    def __init__(self, port: int, seconds: float = 120) -> None:
        """``seconds``: as long as an answer is waited for."""
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)

    def ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Return status and body of an answer.

        Raises:
            OSError, HTTPException: none came.
        """
        self.connection.request(method, path, body)
        with self.connection.getresponse() as response:
            return response.status, response.read()

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()


@contextlib.contextmanager
def beside(*works: Callable[[threading.Event], None], seconds: float = 600) -> Iterator[None]:
    """Do ``works``, each in a thread, while the block runs; the event says each when that is over.

    They have so many ``seconds`` to end then.
    """
    over = threading.Event()
    threads = [threading.Thread(target=work, args=(over,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(seconds)


def post_json(url: str, body: bytes, seconds: float = 120) -> bytes:
    """Post ``body`` to an infer endpoint; return what it answers.

    Raises:
        OSError: the connection broke; TimeoutError: nothing came for ``seconds``.
    """
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=seconds) as response:
        answer: bytes = response.read()
    return answer


def first_output(answer: bytes) -> NDArray[np.float32]:
    """Return the first output in an answer to an infer request, flat."""
    document: Mapping[str, Any] = json.loads(answer)
    return np.asarray(document["outputs"][0]["data"], np.float32)


def fetch(url: str, seconds: float = 30) -> bytes:
    """Return the body of a GET."""
    with urllib.request.urlopen(url, timeout=seconds) as response:
        body: bytes = response.read()
        return body


def metrics(base: str) -> dict[str, float]:
    """Return what a server of ours says of itself, by name with labels."""
    lines = fetch(f"{base}/metrics").decode().splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


def wait_ready(base: str, process: subprocess.Popen[str], seconds: float = 120) -> bool:
    """Wait until the server answers that it is ready; False when its process ended before."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{base}/v2/health/ready", timeout=2) as response:
                if response.status == 200:
                    return True
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    return False


def process_memory(pid: int) -> dict[str, int]:
    """Return the resident set of ``pid`` in bytes: now, at its peak, anonymous, of files.

    Raises:
        OSError: it has ended.
    """
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    if "VmRSS" not in fields:  # its memory goes before it does
        raise ProcessLookupError(f"process {pid} has ended")
    names = {
        "rss_bytes": "VmRSS",
        "rss_peak_bytes": "VmHWM",
        "rss_anonymous_bytes": "RssAnon",
        "rss_file_bytes": "RssFile",
    }
    return {key: int(fields[name].split()[0]) << 10 for key, name in names.items()}
