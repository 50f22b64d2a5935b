"""The decision over all models that share a processor: which request is let in, and which sweep is next.

Pure: no IO, no threads, no clock. ``now`` and all times are seconds on one clock that the caller has.

Invariant (the promise): the agenda is a list of sweeps in the order in which they will run. A request is
let in only together with a list in which it ends by its deadline, and every request that was let in before
ends by its own. So as long as sweeps take no longer than their cost, each request that was let in is in
time, and no later request makes it late (docs/explanation/scheduling.md). While a model is away, its
requests have no such promise: it is not known when it comes back, so no other request waits for it.
"""

import heapq
import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import accumulate, pairwise

from server.scheduling.sweeps import ALONE, Batching, Sweep, Ticket

#: (model, requests) -> seconds that a sweep of so many requests takes the machine.
Cost = Callable[[str, int], float]
#: Sweeps in the order in which they run, each with the time by which it has to have ended.
_Placed = list[tuple[Sweep, float]]
#: A request that was let in before it was read joins within so long,
_EXPECTED_SECONDS = 0.05
#: and the time that its body takes at so many bytes a second; else nothing is kept for it any more.
_PACE = 16 << 20
#: Sweeps at one place: one computes, and a second one reads its weights and computes in the gaps.
_AT_A_PLACE = 2


@dataclass(eq=False)
class _Place:
    """Cores on which one sweep computes at a time. ``until``: when all that have begun there end."""

    until: float = 0.0
    running: list[Sweep] = field(default_factory=list)


@dataclass(eq=False)
class Expected:
    """A request to ``model`` that was let in, and comes: it joins before ``until``, or has to ask anew."""

    model: str
    deadline: float
    n_bytes: int
    until: float = 0.0


class _Room:
    """Where in a list one more sweep may stand, for all positions at once.

    ``ends``: when the sweeps of the list end; ``free``: when each place is free. It saves time where a
    thousand requests are refused in a second: to check the list for each position takes the square of its
    length.
    """

    def __init__(self, placed: _Placed, ends: list[float], free: list[float]) -> None:
        #: With several places another sweep may change the order in which the others begin.
        self.is_exact = len(free) == 1
        self._begins = [free[0], *ends]
        slack = [limit - end for (_, limit), end in zip(placed, ends, strict=True)]
        #: By how much all sweeps from a position on may end later; ascending, as the begins are.
        self._slack = [*reversed([*accumulate(reversed(slack), min)]), math.inf]

    def positions(self, cost: float, deadline: float) -> range:
        """Return where a sweep is in time, as all behind it; with several places all positions."""
        if not self.is_exact:
            return range(len(self._begins))
        last = bisect_right(self._begins, deadline, key=lambda begin: begin + cost)
        return range(bisect_left(self._slack, cost), last)


class Agenda:
    """Sweeps of requests to several models on a machine where ``places`` compute at once.

    ``cost`` is called anew for each list. ``batching``: of a model. ``away``: whether no sweep of a model
    can begin, for an unknown time.
    """

    def __init__(
        self,
        cost: Cost,
        batching: Callable[[str], Batching] = lambda model: ALONE,
        places: int = 1,
        away: Callable[[str], bool] = lambda model: False,
    ) -> None:
        self._cost = cost
        self._batching = batching
        self._away = away
        self._places = [_Place() for _ in range(places)]
        self._sweeps: list[Sweep] = []
        self._expected: dict[Expected, None] = {}

    @property
    def sweeps(self) -> tuple[Sweep, ...]:
        """The sweeps that wait, in the order in which they will run."""
        return tuple(self._sweeps)

    @property
    def expects(self) -> bool:
        """Whether requests are expected that may take a place before one that comes."""
        return bool(self._expected)

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs, waits or is expected."""
        runs = any(place.running for place in self._places)
        return not (self._sweeps or self._expected or runs)

    def admit(self, ticket: Ticket, now: float) -> float | None:
        """Let ``ticket`` in, or refuse it: return None, or in how many seconds it would be let in.

        It joins a sweep of its model that has room, else it gets one of its own; as far in front as its
        priority and deadline say, or where that would make a request late, at a position where it does not.
        """
        trial, refusal = self._trial(ticket, now)
        if trial is not None:
            self._sweeps = [sweep for sweep, _ in trial]
        return refusal

    def ask(self, ticket: Ticket, now: float, own: Expected | None = None) -> float | None:
        """Return what ``admit`` would if all came that is expected before it, and change nothing.

        ``own``: what is expected is the request itself.
        """
        seconds = self._expected_seconds(ticket.deadline, now, own)
        return self._trial(replace(ticket, deadline=ticket.deadline - seconds), now)[1]

    def expect(self, model: str, deadline: float, n_bytes: int, now: float) -> Expected:
        """Expect a request whose body of ``n_bytes`` comes from ``now`` on: others are let in beside it."""
        expected = Expected(model, deadline, n_bytes)
        self.expect_still(expected, now)
        return expected

    def expect_still(self, expected: Expected, since: float) -> None:
        """Expect it as long as if it came from ``since`` on."""
        expected.until = since + _EXPECTED_SECONDS + expected.n_bytes / _PACE
        self._expected[expected] = None

    def came(self, expected: Expected) -> None:
        """Expect it no longer: it joins, or does not come."""
        self._expected.pop(expected, None)

    def _expected_seconds(self, deadline: float, now: float, own: Expected | None) -> float:
        """Return what the requests take that are expected, and have to be answered before ``deadline``."""
        self._expected = {each: None for each in self._expected if each.until > now}
        models = Counter(
            each.model for each in self._expected if each.deadline <= deadline and each is not own
        )
        seconds = 0.0
        for model, count in models.items():
            lanes = self._batching(model).lanes
            sweeps, rest = divmod(count, lanes)
            seconds += sweeps * self._cost(model, lanes) if sweeps else 0.0
            seconds += self._cost(model, rest) if rest else 0.0
        return seconds / len(self._places)

    def _trial(self, ticket: Ticket, now: float) -> tuple[_Placed | None, float | None]:
        """Return a list that has ``ticket``, too, and in which every sweep is in time.

        If there is none: None, and in how many seconds a ticket with as much time as this one has now would
        be let in.
        """
        ends = [*self._ends(self._sweeps, now)]
        for trial in self._trials(ticket, ends, now):
            if self._keeps(trial, now):
                return trial, None
        free = max([*ends, *self._free(now)])
        return None, free + self._cost(ticket.model, 1) - ticket.deadline

    def start(self, now: float, can: Callable[[str], bool]) -> Sweep | None:
        """Take the next sweep that begins now out of the list; None: none does.

        ``can``: whether a sweep of a model may begin. The first one that can begins; it goes before others
        only where that makes none of them late. One with room for more requests waits for them, as long as
        that makes none late, and nothing idles where another sweep would have to wait for it.
        """
        if not self._sweeps:
            return None
        place = min(self._places, key=lambda place: (len(place.running), place.until))
        if len(place.running) == _AT_A_PLACE:
            return None
        placed: _Placed = []  # made where it is needed
        barred: set[str] = set()
        waits: int | None = None
        for position, sweep in enumerate(self._sweeps):
            if sweep.model in barred or not can(sweep.model):
                barred.add(sweep.model)
                continue
            ready = self._batching(sweep.model).ready_at(sweep)
            is_first = position == 0 and not place.running
            if ready <= now and is_first:
                return self._begin(position, place, now)
            placed = placed or self._placed(self._ends(self._sweeps, now))
            if ready > now and self._keeps(placed, ready):
                waits = position if waits is None else waits
                continue
            if is_first or self._may_go(position, place, placed, now):
                return self._begin(position, place, now)
            if waits is None or place.running:
                continue
            if waits == 0 or self._may_go(waits, place, placed, now):
                return self._begin(waits, place, now)
        return None

    def _begin(self, position: int, place: _Place, now: float) -> Sweep:
        """Take a sweep out of the list, which begins at ``place``."""
        sweep = self._sweeps[position]
        # Since its requests joined, the model may have got a plan with fewer lanes.
        begins, rest = sweep.split(self._batching(sweep.model).lanes)
        self._sweeps[position : position + 1] = [rest] if rest.tickets else []
        place.until = max(place.until, now) + self._cost_of(begins)
        place.running.append(begins)
        return begins

    def end(self, sweep: Sweep, now: float) -> None:
        """Note that ``sweep`` has ended, with or without an answer."""
        for place in self._places:
            if sweep in place.running:
                place.running.remove(sweep)
                running_cost = sum(map(self._cost_of, place.running))
                place.until = min(place.until, now + running_cost)

    def leave(self, ticket: Ticket) -> None:
        """Take ``ticket`` out, if it waits."""
        for position, sweep in enumerate(self._sweeps):
            if ticket in sweep.tickets:
                rest = sweep.without(ticket)
                self._sweeps[position : position + 1] = [rest] if rest.tickets else []
                return

    def waits(self, now: float) -> dict[str, float]:
        """Return of each model until when the first of its sweeps waits for more requests, if one does."""
        waits: dict[str, float] = {}
        for sweep in self._sweeps:
            ready = self._batching(sweep.model).ready_at(sweep)
            if ready > now:
                waits[sweep.model] = min(ready, waits.get(sweep.model, ready))
        return waits

    def _trials(self, ticket: Ticket, ends: list[float], now: float) -> Iterator[_Placed]:
        """Yield lists that have ``ticket``, too, first those that suit its rank best."""
        placed = self._placed(ends)
        rank, lanes = (ticket.priority, ticket.deadline), self._batching(ticket.model).lanes
        first = next((i for i, (each, _) in enumerate(placed) if each.rank > rank), len(placed))
        for position, (sweep, limit) in enumerate(placed if lanes > 1 else ()):
            if sweep.model == ticket.model and len(sweep.tickets) < lanes:
                joined = sweep.joined(ticket), min(limit, ticket.deadline)
                others = [*placed[:position], *placed[position + 1 :]]
                for earlier in range(min(first, position), position + 1):
                    yield [*others[:earlier], joined, *others[earlier:]]
        own = Sweep(ticket.model, (ticket,)), ticket.deadline
        room = _Room(placed, ends, self._free(now))
        positions = room.positions(self._cost_of(own[0]), ticket.deadline)
        for position in sorted(positions, key=lambda each: (each < first, abs(each - first))):
            yield [*placed[:position], own, *placed[position:]]
        # The order by deadline is in time wherever any order is. If the list has that order already, this
        # trial was among those above.
        if not (room.is_exact and _is_by_limit(placed)):
            yield sorted([*placed, own], key=_limit)

    def _may_go(self, position: int, place: _Place, placed: _Placed, now: float) -> bool:
        """Return whether the sweep at ``position`` may begin at ``place`` before those in front of it.

        Beside a running sweep it may only if that one is in time even if all of this sweep delays it.
        """
        until = max(place.until, now) + self._cost_of(placed[position][0])
        if any(until > sweep.deadline for sweep in place.running):
            return False
        others = [*placed[:position], *placed[position + 1 :]]
        return self._keeps([placed[position], *others], now)

    def _placed(self, ends: Iterable[float]) -> _Placed:
        """Return the sweeps with their limits: their deadlines, or for late ones their ``ends``."""
        if not self._sweeps:
            return []
        away = cache(self._away)
        return [
            (sweep, math.inf if away(sweep.model) else max(sweep.deadline, end))
            for sweep, end in zip(self._sweeps, ends, strict=True)
        ]

    def _keeps(self, placed: _Placed, now: float) -> bool:
        """Return whether each sweep of a list ends by its limit if they run in this order."""
        ends = self._ends((sweep for sweep, _ in placed), now)
        return all(end <= limit for end, (_, limit) in zip(ends, placed, strict=True))

    def _ends(self, sweeps: Iterable[Sweep], now: float) -> Iterator[float]:
        """Yield when each of ``sweeps`` ends, if each begins at the place that is free first."""
        free, costs = self._free(now), dict[tuple[str, int], float]()
        for sweep in sweeps:
            size = sweep.model, len(sweep.tickets)
            if size not in costs:  # a long list has few different models and sizes
                costs[size] = self._cost(*size)
            end = free[0] + costs[size]
            heapq.heapreplace(free, end)
            yield end

    def _free(self, now: float) -> list[float]:
        """Return when each place is free, as a heap."""
        return sorted([max(place.until, now) for place in self._places])

    def _cost_of(self, sweep: Sweep) -> float:
        return self._cost(sweep.model, len(sweep.tickets))


def _limit(each: tuple[Sweep, float]) -> float:
    return each[1]


def _is_by_limit(placed: _Placed) -> bool:
    return all(before <= after for (_, before), (_, after) in pairwise(placed))
