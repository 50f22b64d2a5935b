"""A client of the Open Inference Protocol with the standard library alone, for benchmarks."""

import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def tensor_body(name: str, array: NDArray[np.float32]) -> bytes:
    """Return an infer request of one FP32 tensor, as JSON."""
    tensor = {
        "name": name,
        "shape": array.shape,
        "datatype": "FP32",
        "data": array.ravel().tolist(),
    }
    return json.dumps({"inputs": [tensor]}).encode()


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
