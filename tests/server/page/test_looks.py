"""Frontiers are planned for clients that wait: once for all of them, and no longer than they do."""

import asyncio
import re
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pipeline.program.stopping import Tell
from server.errors import BusyError
from server.page import looks as looks_module
from server.page.looks import MOST_SEARCHES, Looks, LookStep, Rows
from server.page.routes import STATIC
from server.service import Service
from tests.server.support import settled

ROWS: Rows = [{"plan_bytes": 1}]


class _Pack:
    """Something of its own that may go."""


class _Searches:
    """Models whose frontiers are found when ``found`` is set; counts what has begun and was cancelled."""

    def __init__(self) -> None:
        self.models = self
        self.packs: dict[str, _Pack] = {}
        self.found = asyncio.Event()
        self.begun: list[str] = []
        self.cancelled: list[str] = []
        self.heard: Tell = lambda step, done, of: None

    def find(self, name: str) -> Any:
        """Return what stands for an entry whose model serves."""
        pack = self.packs.setdefault(name, _Pack())
        instance = SimpleNamespace(prepared=SimpleNamespace(pack=pack))
        return SimpleNamespace(serving=lambda: instance)

    async def frontier(self, name: str, heard: Tell) -> Rows:
        self.begun.append(name)
        self.heard = heard
        try:
            await self.found.wait()
        except asyncio.CancelledError:
            self.cancelled.append(name)
            raise
        return ROWS


@pytest.fixture
async def searches() -> _Searches:
    return _Searches()


@pytest.fixture
def looks(searches: _Searches, monkeypatch: pytest.MonkeyPatch) -> Looks:
    monkeypatch.setattr(looks_module, "_SAID_SECONDS", 0.0)
    return Looks(cast(Service, SimpleNamespace(repository=searches)))


async def listen(looks: Looks, name: str) -> list[LookStep | Rows]:
    return [said async for said in looks.frontier(name)]


async def test_all_who_wait_share_one_search(looks: Looks, searches: _Searches) -> None:
    tasks = [asyncio.create_task(listen(looks, "a")) for _ in range(3)]
    await settled()
    searches.heard("plans", 1, 18)
    await settled()
    searches.found.set()
    for said in await asyncio.gather(*tasks):
        assert said[0] == LookStep("begins", 0, 1)
        assert LookStep("plans", 1, 18) in said
        assert said[-1] == ROWS
    assert await listen(looks, "a") == [ROWS]
    assert searches.begun == ["a"]


async def test_a_search_ends_with_the_last_who_waits(looks: Looks, searches: _Searches) -> None:
    tasks = [asyncio.create_task(listen(looks, "a")) for _ in range(2)]
    await settled()
    tasks[0].cancel()
    await settled()
    assert searches.cancelled == []
    tasks[1].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert searches.cancelled == ["a"]
    searches.found.set()
    assert (await listen(looks, "a"))[-1] == ROWS


async def test_one_search_holds_up_no_other(looks: Looks, searches: _Searches) -> None:
    tasks = [asyncio.create_task(listen(looks, f"m{n}")) for n in range(MOST_SEARCHES)]
    await settled()
    assert len(searches.begun) == MOST_SEARCHES
    with pytest.raises(BusyError):
        await listen(looks, "one more")
    searches.found.set()
    await asyncio.gather(*tasks)
    assert (await listen(looks, "one more"))[-1] == ROWS


async def test_a_pack_that_was_replaced_is_searched_anew(looks: Looks, searches: _Searches) -> None:
    searches.found.set()
    await listen(looks, "a")
    searches.packs["a"] = _Pack()
    await listen(looks, "a")
    assert searches.begun == ["a", "a"]


# Files of the page refer to each other, and to no other host; no code and no style is inline.


FILES = {path.name: path.read_text() for path in STATIC.iterdir()}


def test_files_refer_to_files_that_are_there_and_to_no_other_host() -> None:
    for name, text in FILES.items():
        hosts = set(re.findall(r"https?://[^\s\"'`)]+", text))
        assert hosts <= {"http://www.w3.org/2000/svg"}, name
        modules = set(re.findall(r"from \"\./([^\"]+)\"", text))
        assert modules | set(re.findall(r"page/files/([\w.]+)", text)) <= FILES.keys(), name


def test_nothing_that_the_policy_of_the_page_forbids() -> None:
    inline = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|eval\(| style=| on\w+=\"|<style")
    for name, text in FILES.items():
        assert not inline.search(text), name
