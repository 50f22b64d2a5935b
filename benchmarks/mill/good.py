"""Good clients: they ask at their pace, retry what they are told to retry, and check every answer."""

import asyncio
import itertools
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from benchmarks.load.messages import Response
from benchmarks.load.percentiles import summary_ms
from benchmarks.mill.errands import Errand, Fault
from benchmarks.mill.wire import Wire

_PATIENCE = 60.0  # seconds until an answer, retries included
_LONGEST_PAUSE = 5.0  # before a retry, whatever Retry-After says
_FAILURES_KEPT = 12
_SOURCE = "127.0.0.1"


@dataclass
class Experience:
    """What good clients met with in one phase: seconds until the right answer, retries included."""

    delays: list[float] = field(default_factory=list)
    retries: int = 0
    retried_requests: int = 0
    failures: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return the figures for the report."""
        counts = {"retries": self.retries, "retried_requests": self.retried_requests}
        return {**summary_ms(self.delays), **counts, "failures": self.failures}


class Book:
    """What all good clients met with, by phase and errand."""

    def __init__(self) -> None:
        self.phase = "start"
        self.pages: dict[str, dict[str, Experience]] = defaultdict(lambda: defaultdict(Experience))
        self.failures: list[str] = []

    def page(self, errand: str) -> Experience:
        """Return what ``errand`` met with in the phase that runs now."""
        return self.pages[self.phase][errand]

    def fail(self, errand: str, phase: str, text: str) -> None:
        """Note a request that was not answered as it should be."""
        self.pages[phase][errand].failures += 1
        if len(self.failures) < _FAILURES_KEPT:
            self.failures.append(f"{phase}: {errand}: {text[:300]}")

    def totals(self) -> dict[str, Any]:
        """Return the figures of all phases together."""
        total = Experience()
        for experience in (each for page in self.pages.values() for each in page.values()):
            total.delays += experience.delays
            total.retries += experience.retries
            total.retried_requests += experience.retried_requests
            total.failures += experience.failures
        return total.as_dict()


class _NotRightError(Exception):
    """An answer that a good client neither accepts nor may retry."""


class GoodClient:
    """Runs one errand until stopped."""

    def __init__(self, errand: Errand, port: int, book: Book) -> None:
        self._errand, self._port, self._book = errand, port, book
        self._wire: Wire | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Ask every ``errand.every`` seconds; a request that takes longer delays the next."""
        turns = itertools.cycle(self._errand.requests)
        try:
            while not stop.is_set():
                started = time.perf_counter()
                await self.ask(*next(turns))
                pause = self._errand.every - (time.perf_counter() - started)
                await asyncio.sleep(max(0.0, pause))
        finally:
            self._hang_up()

    async def ask_once(self) -> None:
        """Ask the first of its requests on a connection of its own."""
        try:
            await self.ask(*self._errand.requests[0])
        finally:
            self._hang_up()

    async def ask(self, request: bytes, fault: Fault) -> None:
        """Ask once, and write down how it went in the phase in which it began."""
        phase, name = self._book.phase, self._errand.name
        page = self._book.page(name)
        started, retries = time.perf_counter(), 0
        try:
            async with asyncio.timeout(_PATIENCE):
                while (response := await self._once(request)).status == 503:
                    await asyncio.sleep(_pause(response))
                    retries += 1
                _check(response, fault)
            page.delays.append(time.perf_counter() - started)
        except TimeoutError:
            self._fail(phase, f"no answer within {_PATIENCE:g} s after {retries} retries")
        except (OSError, ValueError, LookupError, TypeError, _NotRightError) as exc:
            self._fail(phase, f"{type(exc).__name__}: {exc}")
            await asyncio.sleep(0.2)  # a dead server is not asked a thousand times
        page.retries += retries
        page.retried_requests += retries > 0

    def _fail(self, phase: str, text: str) -> None:
        self._book.fail(self._errand.name, phase, text)
        self._hang_up()

    async def _once(self, request: bytes) -> Response:
        if self._wire is None or self._wire.has_ended():
            self._hang_up()
            self._wire = await Wire().connect(self._port, _SOURCE)
        response = await self._wire.ask(request)
        if response.closes or self._errand.fresh:
            self._hang_up()
        return response

    def _hang_up(self) -> None:
        if self._wire is not None:
            self._wire.close()
            self._wire = None


def _pause(response: Response) -> float:
    after = response.header("retry-after")
    if after is None:
        raise _NotRightError(f"503 without Retry-After: {response.body[:200]!r}")
    return min(float(after), _LONGEST_PAUSE)


def _check(response: Response, fault: Fault) -> None:
    if response.status != 200:
        raise _NotRightError(f"{response.status} {response.body[:200]!r}")
    found = fault(response)
    if found is not None:
        raise _NotRightError(found)
