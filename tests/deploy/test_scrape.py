"""A real Prometheus scrapes a real server under load; every query of the dashboard returns data."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.peers.cgroup import MemoryGroup, memory_group
from tests.deploy.test_deploy import dashboard_expressions, expressions_with_data, filled
from tests.deploy.watched import compile_default, profile, until, watched

pytestmark = [pytest.mark.tools, pytest.mark.slow]

LEAST = "--budget=2816KiB"


def test_every_query_that_needs_no_profile_and_no_limit_returns_data(tmp_path: Path) -> None:
    compile_default(tmp_path / "repository" / "cifar10")
    return_data(tmp_path, expressions_with_data() + dashboard_expressions("fleet"))


def test_every_query_returns_data(tmp_path: Path) -> None:
    """Of a model with a profile and a bound, served in a group with a memory limit."""
    pack = tmp_path / "repository" / "cifar10"
    compile_default(pack)
    profile(pack, "--iterations=2")
    profile(pack, "--bound", LEAST, "--runs=3")
    try:
        group = memory_group("scraped", 1 << 30)
        with group as entered:
            return_data(tmp_path, dashboard_expressions(), entered)
    except PermissionError as exc:
        pytest.skip(f"no memory group can be made here: {exc}")


def return_data(folder: Path, expressions: list[str], group: MemoryGroup | None = None) -> None:
    """Serve ``folder``/repository under load until every one of ``expressions`` has a number."""
    with (
        watched(folder, LEAST, group=group) as server,
        server.under_load(server.classify, 4, pause=0.05),
    ):
        missing = expressions

        def complete() -> bool:
            nonlocal missing
            missing = [text for text in missing if not has_data(server.query(filled(text, "10s")))]
            return not missing

        try:
            until(complete)
        finally:
            assert missing == []


def has_data(result: list[Any]) -> bool:
    return any(sample["value"][1] != "NaN" for sample in result)
