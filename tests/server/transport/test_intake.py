"""When requests begin, and which are refused: played on a virtual clock, by a loop that a test holds."""

import asyncio
import heapq
import itertools
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import pytest

from server.errors import BusyError, LateError
from server.protocol.answers import Answer
from server.transport.http1 import Head
from server.transport.intake import (
    PAUSE_SECONDS,
    SLICES_SECONDS,
    Arrived,
    Intake,
    Refused,
)
from tests.server.transport.wire import Wire, answers_at_once

WORK, READ = 0.0002, 0.00003
_MOST_TURNS = 20_000
_FULL = Answer(b"", [(b"content-length", b"0")], 503)


class Loop:
    """What an intake sees of an event loop: it runs what is ready, then reads what has come."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.ready: deque[Callable[[], None]] = deque()
        self.unwritten: list[Asking] = []
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self.max_timers = 0

    def time(self) -> float:
        return self.now

    def call_soon(self, call: Callable[[], None]) -> None:
        self.ready.append(call)

    def call_later(self, seconds: float, call: Callable[[], None]) -> object:
        self.max_timers = max(self.max_timers, len(self._timers) + 1)
        heapq.heappush(self._timers, (self.now + seconds, next(self._numbers), call))
        return self._timers[0]

    def turn(self) -> None:
        """Run the timers that are due and what is ready now, not what that makes ready; then write."""
        while self._timers and self._timers[0][0] <= self.now:
            heapq.heappop(self._timers)[2]()
        for _ in range(len(self.ready)):
            self.ready.popleft()()
        for each in self.unwritten:
            each.answered = self.now
        self.unwritten.clear()

    @property
    def next_timer(self) -> float:
        return self._timers[0][0] if self._timers else math.inf


HEAD = Head("POST", "1.1", "/x", b"/x", b"", [], keeps=True, expects=False)


@dataclass(eq=False)
class Asking:
    """A request that takes ``work`` seconds of ``loop``; times are infinite until they come."""

    loop: Loop
    arrived_at: float
    timeout: float | None
    work: float = WORK
    body: bytes = b""
    head: Head = HEAD
    declared_bytes: int = 0
    expected: Any = None
    begun: float = math.inf
    answered: float = math.inf
    refused: float = math.inf

    def begin(self) -> None:
        self.begun = self.loop.now
        self.loop.call_soon(self._run)

    def _run(self) -> None:
        self.loop.now += self.work
        self.loop.unwritten.append(self)

    def refuse(self, answer: Refused) -> None:
        assert self.begun == math.inf
        assert answer == _FULL
        self.refused = self.loop.now

    @property
    def answerable_at(self) -> float:
        return self.arrived_at

    @property
    def is_late(self) -> bool:
        assert self.timeout is not None
        return math.isfinite(self.answered) and self.answered > self.arrived_at + self.timeout


class Timeouts:
    """A reception with the timeout of each request; ``full``: a line that refuses all."""

    def __init__(self) -> None:
        self.full = False

    def deadline(self, request: Arrived, is_free: bool) -> float | None:
        asking = cast(Asking, request)
        if self.full:
            raise BusyError("full")
        return None if asking.timeout is None else asking.arrived_at + asking.timeout

    def refusal(self, request: Arrived, why: BusyError) -> Refused:
        return _FULL


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def intake(loop: Loop) -> Intake:
    return Intake(Timeouts(), cast(asyncio.AbstractEventLoop, loop), loop.time)


def play(loop: Loop, intake: Intake, coming: list[Asking]) -> None:
    """Let ``coming`` come, each when it does, until nothing is left to do."""
    left = deque(sorted(coming, key=lambda each: each.arrived_at))
    for _ in range(_MOST_TURNS):
        loop.turn()
        while left and left[0].arrived_at <= loop.now:
            loop.now += READ
            intake.take(left.popleft())
        if not loop.ready:
            next_at = min(left[0].arrived_at if left else math.inf, loop.next_timer)
            if next_at == math.inf:
                return
            loop.now = max(loop.now, next_at)
    raise AssertionError("it does not come to an end")


def arrivals(loop: Loop, rate: float, seconds: float, timeout: float, seed: int) -> list[Asking]:
    drawn = random.Random(seed)
    at, found = loop.now, list[Asking]()
    while at < loop.now + seconds:
        at += drawn.expovariate(rate)
        found.append(Asking(loop, at, timeout))
    return found


@pytest.mark.parametrize("timeout", [0.15, 0.005])
@pytest.mark.parametrize("seed", range(2))
def test_at_three_times_the_capacity_those_that_begin_are_in_time(
    loop: Loop, intake: Intake, timeout: float, seed: int
) -> None:
    seconds = 0.6
    coming = arrivals(loop, 3 / WORK, seconds, timeout, seed)
    play(loop, intake, coming)
    answered = [each for each in coming if math.isfinite(each.answered)]
    refused = [each for each in coming if math.isfinite(each.refused)]
    assert len(answered) + len(refused) == len(coming)
    assert not any(each.is_late for each in coming)
    capacity = seconds * (1 - 3 / WORK * READ) / WORK  # what reading them all leaves
    assert len(answered) >= 0.9 * capacity
    delays = sorted(each.refused - each.arrived_at for each in refused)
    assert delays[0] >= PAUSE_SECONDS - SLICES_SECONDS[0] - READ
    assert delays[int(0.99 * len(delays))] <= 0.05
    assert loop.max_timers == 1


def test_where_there_is_time_for_all_nobody_is_refused(loop: Loop, intake: Intake) -> None:
    coming = [Asking(loop, loop.now, 30.0) for _ in range(2000)]
    play(loop, intake, coming)
    assert all(math.isfinite(each.answered) for each in coming)


def test_sockets_are_looked_at_while_many_wait(loop: Loop, intake: Intake) -> None:
    """Or else what comes meanwhile waits unseen for as long as the work for all of them takes."""
    for _ in range(500):
        intake.take(Asking(loop, loop.now, 30.0))
    while len(loop.ready) or loop.next_timer < math.inf:
        before = loop.now
        loop.turn()
        assert loop.now - before <= SLICES_SECONDS[1] + WORK


def test_what_suddenly_takes_longer_is_in_time_or_refused(loop: Loop, intake: Intake) -> None:
    coming = arrivals(loop, 3 / WORK, 0.6, 0.15, 7)
    for each in coming:
        if 0.2 <= each.arrived_at - coming[0].arrived_at < 0.3:
            each.work = 2.5 * WORK
    play(loop, intake, coming)
    assert not any(each.is_late for each in coming)


def test_the_first_deadline_goes_first_and_others_need_not_wait(loop: Loop, intake: Intake) -> None:
    long = [Asking(loop, loop.now, 30.0) for _ in range(100)]
    for each in long:
        intake.take(each)
    short, probe = Asking(loop, loop.now, 0.02), Asking(loop, loop.now, None)
    intake.take(short)
    intake.take(probe)
    assert math.isfinite(probe.begun)
    play(loop, intake, [])
    assert math.isfinite(short.begun)
    assert sum(each.begun < short.begun for each in long) == 1  # the one that found a free loop


def test_a_free_loop_lets_any_request_begin(loop: Loop, intake: Intake) -> None:
    for _ in range(3):
        hasty = Asking(loop, loop.now, 1e-6)
        play(loop, intake, [hasty])
        assert math.isfinite(hasty.begun)


def test_what_its_line_refuses_is_refused_and_not_sooner_than_after_a_pause(loop: Loop) -> None:
    reception = Timeouts()
    reception.full = True
    intake = Intake(reception, cast(asyncio.AbstractEventLoop, loop), loop.time)
    fresh, old = Asking(loop, loop.now, 1.0), Asking(loop, loop.now - 1.0, 9.0)
    play(loop, intake, [fresh, old])
    assert (
        old.refused - loop.now
        <= 0
        < PAUSE_SECONDS - SLICES_SECONDS[0]
        <= fresh.refused - fresh.arrived_at
    )


# On a connection

PIPELINED = b"GET /x HTTP/1.1\r\nhost: x\r\n\r\n"


class Refusing(Timeouts):
    """Refuses all, and says so in HTTP."""

    def deadline(self, request: Arrived, is_free: bool) -> float | None:
        raise LateError("too late", 1.0)

    def refusal(self, request: Arrived, why: BusyError) -> Refused:
        return _FULL


def refusing(wire: Wire) -> None:
    """Have the connection of ``wire`` refuse what it gets, on the clock of ``wire``."""
    loop = wire.connection.loop
    wire.connection._intake = Intake(Refusing(), loop, loop.time)


async def test_a_refused_request_never_begins_and_its_connection_lives_on() -> None:
    begun = list[Any]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        begun.append(scope)
        await answers_at_once(scope, receive, send)

    wire = Wire(app)
    refusing(wire)
    await wire.sends(b"POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc")
    assert wire.connection.silence(wire.connection.loop.time()) is None  # it waits for us
    assert wire.answer == b""
    await wire.time_passes(0.1)
    assert wire.answer.count(b"HTTP/1.1 503") == 1
    # Two in one segment, and one whose body comes later.
    await wire.sends(b"GET /x HTTP/1.1\r\nhost: x\r\n\r\n" * 2)
    for n_refused in (1, 2, 3):
        assert wire.answer.count(b"HTTP/1.1 503") == n_refused
        await wire.time_passes(0.1)
    await wire.sends(b"POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\na")
    await wire.time_passes(0.1)
    assert wire.answer.count(b"HTTP/1.1 503") == 4
    await wire.sends(b"bc")
    assert not wire.transport.is_closing()
    wire.connection._intake = Intake(_Begins(), asyncio.get_running_loop())
    await wire.sends(b"GET /x HTTP/1.1\r\nhost: x\r\n\r\n")
    assert wire.answer.endswith(b"ok")
    assert len(begun) == 1


class _Begins(Timeouts):
    def deadline(self, request: Arrived, is_free: bool) -> float | None:
        return None


EMPTY = b"POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"


@pytest.mark.parametrize(
    ("n_connections", "data"), [(1, PIPELINED * 400), (7, PIPELINED), (3, EMPTY * 2)]
)
async def test_however_many_are_sent_together_a_connection_is_refused_once_a_pause(
    n_connections: int, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And all refusals together have one timer."""
    wires = [Wire(answers_at_once) for _ in range(n_connections)]
    first, timers = wires[0], set[object]()
    loop, waiting = first.connection.loop, list[int]()
    call_later = loop.call_later

    def counted(seconds: float, call: Any, *more: Any) -> asyncio.TimerHandle:
        timer = object()
        timers.add(timer)

        def fire() -> None:
            timers.discard(timer)
            call(*more)

        return call_later(seconds, fire)

    monkeypatch.setattr(loop, "call_later", counted)
    intake = Intake(Refusing(), loop, first._time)
    seconds, step = 1.0, 0.004
    for wire in wires:
        wire.connection._intake, wire.connection._clock = intake, first._time
    loop.time = first._time  # type: ignore[method-assign]
    for _ in range(round(seconds / step)):
        for wire in wires:
            await wire.sends(data)
        await first.time_passes(step)
        waiting.append(len(timers))
    refused = [wire.answer.count(b"HTTP/1.1 503") for wire in wires]
    assert max(waiting) == 1
    assert max(refused) <= seconds / PAUSE_SECONDS + 1
    assert min(refused) >= seconds / (PAUSE_SECONDS + 2 * step)


async def test_a_refusal_that_fails_holds_up_no_other() -> None:
    loop = Loop()
    reception = Timeouts()
    reception.full = True
    intake = Intake(reception, cast(asyncio.AbstractEventLoop, loop), loop.time)

    class Failing(Asking):
        def refuse(self, answer: Refused) -> None:
            raise RuntimeError("no line ends")

    failing, sound = Failing(loop, loop.now, 1.0), Asking(loop, loop.now, 1.0)
    intake.take(failing)
    intake.take(sound)
    loop.now += PAUSE_SECONDS
    with pytest.raises(RuntimeError, match="line ends"):
        loop.turn()
    play(loop, intake, [])
    assert math.isfinite(sound.refused)


async def test_who_asks_once_and_is_refused_is_closed() -> None:
    wire = Wire(answers_at_once)
    refusing(wire)
    await wire.sends(b"GET /x HTTP/1.0\r\n\r\n")
    assert wire.answer == b""
    await wire.time_passes(0.1)
    assert wire.answer.count(b"HTTP/1.1 503") == 1
    assert wire.transport.is_closed


async def test_a_client_that_leaves_while_it_waits_begins_nothing() -> None:
    begun = list[Any]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        begun.append(scope)

    wire, kept = Wire(app), list[Arrived]()
    intake = Intake(_Begins(), asyncio.get_running_loop())
    intake.take = kept.append  # type: ignore[method-assign,assignment]
    wire.connection._intake = intake
    await wire.sends(b"GET /x HTTP/1.1\r\nhost: x\r\n\r\n")
    await wire.is_lost()
    kept[0].begin()
    kept[0].refuse(_FULL)
    await wire.settled()
    assert begun == []
    assert wire.answer == b""
