"""Closed-loop load by wrk, where it is installed: a client in C takes less of a small machine."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

_ANSWERS = re.compile(r"(\d+) requests in ([\d.]+)(ms|s|m)")
_REFUSED = re.compile(r"Non-2xx or 3xx responses: (\d+)")
_ENDED = re.compile(r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0}


def has_wrk() -> bool:
    """Return whether wrk is installed (Debian: apt-get install wrk)."""
    return shutil.which("wrk") is not None


def wrk_loop(port: int, script: Path, path: str, clients: int, seconds: float) -> dict[str, Any]:
    """Return what ``clients`` kept connections got in ``seconds`` (whole ones), as ``closed_loop`` does."""
    url = f"http://127.0.0.1:{port}{path}"
    flags = ["-t1", f"-c{clients}", f"-d{max(1, round(seconds))}s", "-s", str(script)]
    done = subprocess.run(["wrk", *flags, url], capture_output=True, text=True, check=True)
    return found(done.stdout)


def found(said: str) -> dict[str, Any]:
    """Return the figures in what wrk ``said``.

    Raises:
        ValueError: there are none.
    """
    answered = _ANSWERS.search(said)
    if answered is None:
        raise ValueError(f"not what wrk says: {said[-500:]!r}")
    answers, elapsed = int(answered[1]), float(answered[2]) * _SECONDS[answered[3]]
    refused, ended = _REFUSED.search(said), _ENDED.search(said)
    others = int(refused[1]) if refused else 0
    statuses = {"200": answers - others, "other": others}
    statuses["ended"] = sum(map(int, ended.groups())) if ended else 0
    return {
        "seconds": elapsed,
        "statuses": {status: count for status, count in statuses.items() if count},
        "answers": answers,
        "per_second": round(statuses["200"] / elapsed, 2),
    }


def post_script(body: bytes) -> str:
    """Return the script with which wrk posts ``body``, JSON, again and again."""
    text = body.decode()
    return (
        f'wrk.method = "POST"\nwrk.body = [==[{text}]==]\n'
        'wrk.headers["Content-Type"] = "application/json"\n'
    )
