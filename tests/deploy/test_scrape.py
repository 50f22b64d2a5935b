"""A real Prometheus scrapes a real server; every query of the dashboard returns data."""

from pathlib import Path
from typing import Any

import pytest

from tests.deploy.test_deploy import expressions_with_data, filled
from tests.deploy.watched import compile_default, until, watched

pytestmark = pytest.mark.tools


def test_every_query_of_the_dashboard_returns_data(tmp_path: Path) -> None:
    compile_default(tmp_path / "repository" / "cifar10")
    with watched(tmp_path, "--budget=2816KiB") as server:
        missing: list[str] = []

        def complete() -> bool:
            assert server.classify() == 200
            found = {text: server.query(filled(text, "10s")) for text in expressions_with_data()}
            missing[:] = [text for text, result in found.items() if not has_data(result)]
            return not missing

        try:
            until(complete)
        finally:
            assert missing == []


def has_data(result: list[Any]) -> bool:
    return any(sample["value"][1] != "NaN" for sample in result)
