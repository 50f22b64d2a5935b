"""Our alerts beside real servers: silent while all is as planned, and each fires for its fault.

Prometheus and servers are real; what the rules give minutes has seconds here. tools/check_deploy.sh does
the rest, with the unit and the rules as they are.
"""

import json
import math
import signal
import time
from collections.abc import Callable
from pathlib import Path
from shutil import copytree

import pytest

from tests.deploy.watched import Watched, compile_default, fetch, profile, until, watched

pytestmark = [pytest.mark.tools, pytest.mark.slow]

LEAST = "--budget=2816KiB"  # the network has 1.8 MiB of weights: they stream
WATCHED_SECONDS = 15.0
SECONDS = 90.0
FAULTY = "tests.deploy.faulty_server"

Send = Callable[[], int]


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with a network that has a profile."""
    repository = tmp_path_factory.mktemp("profiled")
    compile_default(repository / "cifar10")
    profile(repository / "cifar10", "--iterations=2")
    return repository


@pytest.fixture
def served(tmp_path: Path, profiled: Path) -> Path:
    """A folder of its own for the test, with that repository."""
    copytree(profiled, tmp_path / "repository")
    return tmp_path


def infer(server: Watched, model: str, **parameters: int) -> Send:
    """Return what sends a request of numbers to ``model``."""
    inputs = fetch(f"{server.base}/v2/models/{model}")["inputs"]
    filled = [{**each, "data": [0.5] * math.prod(each["shape"])} for each in inputs]
    body = json.dumps({"inputs": filled, "parameters": parameters}).encode()
    return lambda: server.post(f"/v2/models/{model}/infer", body)


def never(server: Watched, seconds: float) -> None:
    """Look for ``seconds``: no alert may fire."""
    end = time.monotonic() + seconds
    until(lambda: bool(server.fired(seconds)) or time.monotonic() > end, seconds + SECONDS)
    assert server.fired(seconds) == set()


@pytest.mark.parametrize("has_profile", [True, False])
def test_none_fires_at_rest_and_under_load(served: Path, has_profile: bool) -> None:
    """`auto` fills the budget, weights stream, and as many wait as may."""
    if not has_profile:
        (served / "repository" / "cifar10" / "1" / "profile.json").unlink()
    with watched(served, LEAST) as server:
        full = "layerstream_budget_used_bytes / layerstream_budget_bytes > 0.9"
        assert bool(server.query("layerstream_predicted_seconds")) == has_profile
        assert has_profile <= bool(server.query(full))
        never(server, WATCHED_SECONDS)
        with server.under_load(infer(server, "cifar10"), 16) as statuses:
            never(server, WATCHED_SECONDS)
        assert set(statuses) == {200}
        assert server.query("rate(layerstream_read_bytes_total[10s]) > 0")
        assert server.fired(3 * WATCHED_SECONDS) == set()


def test_none_fires_while_several_models_share_the_machine(served: Path) -> None:
    for name in ("second", "third"):
        copytree(served / "repository" / "cifar10", served / "repository" / name)
    with watched(served, "--budget=8MiB") as server:
        with (
            server.under_load(infer(server, "cifar10"), 3),
            server.under_load(infer(server, "second"), 3),
            server.under_load(infer(server, "third"), 3),
        ):
            never(server, WATCHED_SECONDS)
        assert server.fired(2 * WATCHED_SECONDS) == set()


def test_none_fires_for_a_model_that_was_unloaded(served: Path) -> None:
    """Also where its clients go on asking."""
    copytree(served / "repository" / "cifar10", served / "repository" / "second")
    with watched(served, "--budget=8MiB") as server:
        asked = infer(server, "second")
        assert server.post("/v2/repository/models/second/unload", b"") == 200
        with server.under_load(asked, 2) as statuses:
            never(server, WATCHED_SECONDS)
        assert set(statuses) == {404}
        assert server.fired(2 * WATCHED_SECONDS) == set()


@pytest.mark.parametrize(
    ("fault", "alerts"),
    [
        ("io error", {"LayerstreamReadsFail", "LayerstreamRequestsFail"}),
        ("gone", {"LayerstreamModelNotReady"}),
        ("hung", {"LayerstreamReadsHang"}),
        ("slow", {"LayerstreamSlowSweeps"}),
        ("leak", {"LayerstreamMemoryAboveBudget"}),
    ],
)
def test_each_fires_for_its_fault(served: Path, fault: str, alerts: set[str]) -> None:
    environment = {"LAYERSTREAM_TEST_FAULT": fault}
    with (
        watched(served, LEAST, module=FAULTY, environment=environment) as server,
        server.under_load(server.classify, 2),
    ):
        never(server, 5.0)
        server.server.send_signal(signal.SIGUSR1)
        try:
            until(lambda: alerts <= server.fired(SECONDS), SECONDS)
        finally:
            server.server.send_signal(signal.SIGUSR1)  # what hangs would not let it end


def test_deadlines_missed(served: Path) -> None:
    with watched(served, LEAST) as server, server.under_load(infer(server, "cifar10", timeout=1)):
        until(lambda: "LayerstreamDeadlinesMissed" in server.fired(SECONDS))


def test_more_clients_than_places(served: Path) -> None:
    with (
        watched(served, LEAST, "--queue-limit=1") as server,
        server.under_load(infer(server, "cifar10"), 16),
    ):
        until(lambda: "LayerstreamRequestsRefused" in server.fired(SECONDS))


def test_a_model_that_does_not_fit(served: Path) -> None:
    for number in range(12):  # of which some fit, in turns
        copytree(served / "repository" / "cifar10", served / "repository" / f"other{number}")
    with watched(served, LEAST) as server:
        until(lambda: "LayerstreamModelRefused" in server.fired(SECONDS))
        assert server.fired(SECONDS) == {"LayerstreamModelRefused"}


def test_a_server_that_is_down(served: Path) -> None:
    with watched(served, LEAST) as server:
        server.server.kill()
        until(lambda: server.fired(SECONDS) == {"LayerstreamDown"})
