"""What counts as a right answer, and when the claim of many models holds."""

import json
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.load.mixed import AskedModel, MixedLoad
from benchmarks.many_models import verdict
from benchmarks.repository.killed import make_repository, round_of
from tests.examples import over

RIGHT = np.array([[1.0, -2.0]], np.float32)
QUESTION = AskedModel("m", b"{}", {"y": RIGHT}, {"y": 1e-3})
HELD = {
    "budget_bytes": 100,
    "base_bytes": 60,
    "base_anonymous_bytes": 40,
    "limit_bytes": 168,
    "cgroup_peak_bytes": 168,
    "anonymous_peak_bytes": 147,
    "oom_kills": 0,
    "anonymous_growth": 0.01,
    "wrong": 0,
    "right": {"a": 3, "b": 1},
}


def answer(*data: float, name: str = "y") -> bytes:
    return json.dumps({"outputs": [{"name": name, "data": data}]}).encode()


@over(
    "given, fault",
    [
        (answer(1.0, -2.0), ""),
        (answer(1.0005, -2.0), ""),
        (answer(1.01, -2.0), "off by"),
        (answer(float("nan"), -2.0), "off by"),
        (answer(1.0, -2.0, name="z"), "no output 'y'"),
    ],
)
def test_an_answer_is_right_within_its_tolerance(given: bytes, fault: str) -> None:
    found = QUESTION.fault(given)
    assert fault in found
    assert bool(fault) == bool(found)


@over(
    "change, broken",
    [
        ({}, None),
        ({"wrong": 1}, "answers"),
        ({"right": {"a": 3}}, "answers"),
        ({"oom_kills": 1}, "memory"),
        ({"cgroup_peak_bytes": 169}, "memory"),
        ({"anonymous_peak_bytes": 148}, "anonymous_memory"),
        ({"anonymous_growth": 0.011}, "growth"),
        ({"anonymous_growth": None}, None),
    ],
)
def test_each_part_of_the_claim_can_break(change: dict[str, Any], broken: str | None) -> None:
    holds = verdict({**HELD, **change}, ["a", "b"])
    assert [name for name, true in holds.items() if not true] == ([broken] if broken else [])


class _Server(BaseHTTPRequestHandler):
    """Answers model "m" right and others wrong."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        right = "/m/" in self.path
        body = answer(1.0, -2.0) if right else answer(5.0, 5.0)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_wrong_answers_are_told_by_model() -> None:
    wrong = AskedModel("other", b"{}", QUESTION.right, QUESTION.tolerances)
    with ThreadingHTTPServer(("127.0.0.1", 0), _Server) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        load = MixedLoad(server.server_port, [QUESTION, wrong], connections=2).run(0.2)
        server.shutdown()
        thread.join()
    assert load.right["m"] > 0
    assert load.right["other"] == 0
    assert load.faults
    assert all("other" in fault for fault in load.faults)


# A service is killed while models come and go.


@pytest.mark.slow
def test_a_killed_service_leaves_whole_models(tmp_path: Path) -> None:
    repository = make_repository(tmp_path)
    counts = sum((round_of(seed, repository) for seed in range(4)), Counter[str]())
    assert len(counts) > 4  # or nothing was cut off, or nothing done
