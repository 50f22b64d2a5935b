"""A bounded time for tests that may take longer: ``-p tests.slot --slot SECONDS --slot-seed WORD``.

Slow tests come first, then drawn ones; files in an order that the seed decides, so that what one run has
no time for another one runs. No test starts when the time is over; those left are named at the end.
"""

import hashlib
import time

import pytest

_LEFT = "not run: the slot is over"
_END = pytest.StashKey[float]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slot", type=float, required=True, help="seconds in which tests may start")
    parser.addoption("--slot-seed", default="", help="decides the order of the files")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    seed = config.getoption("slot_seed")

    def place(item: pytest.Item) -> tuple[bool, str]:
        digest = hashlib.sha256(f"{seed} {item.path.name}".encode()).hexdigest()
        return item.get_closest_marker("slow") is None, digest

    items.sort(key=place)


def pytest_collection_finish(session: pytest.Session) -> None:
    session.config.stash[_END] = time.monotonic() + session.config.getoption("slot")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if time.monotonic() > item.config.stash[_END]:
        pytest.skip(_LEFT)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    left = [report.nodeid for report in skipped if _LEFT in str(report.longrepr)]
    if left:
        terminalreporter.section(f"NOT RUN: {len(left)} tests for which the slot had no time")
        for name in left:
            terminalreporter.line(name)
