"""The decision over all models that share a processor: which request is let in, and which batch is next.

Pure: no IO, no threads, no clock. ``now`` and all times are seconds on one clock that the caller has.

Invariant (the promise): the run queue is a list of batches in the order in which they will run. A request
is let in only together with a list in which it ends by its deadline, and every request that was let in
before ends by its own. So as long as batches take no longer than their cost, each request that was let in
is in time, and no later request makes it late (docs/explanation/scheduling.md). While a model is away, its
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

#: (model, requests) -> seconds that a batch of so many requests takes the machine.
Cost = Callable[[str, int], float]
#: Batches in the order in which they run, each with the time by which it has to have ended.
_Placed = list[tuple[Sweep, float]]
#: A request that was let in before it was read joins within so long,
_EXPECTED_SECONDS = 0.05
#: and the time that its body takes at so many bytes a second; else nothing is kept for it any more.
_PACE = 16 << 20
#: A late refusal raises what expected requests count for by so much,
_OVERRUN_OF_REFUSAL = 0.1
#: to at most so many times their cost,
_MAX_OVERRUN = 4.0
#: and each other request lowers it by one in so many parts of the excess.
_OVERRUN_OVER = 512
#: Batches in one slot: one computes, and a second one reads its weights and computes in the gaps.
_BATCHES_PER_SLOT = 2


@dataclass(eq=False)
class _Slot:
    """Cores on which one batch computes at a time. ``until``: when all that have begun there end."""

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
    """Where in a list one more batch may stand, for all positions at once.

    ``ends``: when the batches of the list end; ``free``: when each slot is free. It saves time where a
    thousand requests are refused in a second: to check the list for each position takes the square of its
    length.
    """

    def __init__(self, placed: _Placed, ends: list[float], free: list[float]) -> None:
        #: With several slots another batch may change the order in which the others begin.
        self.is_exact = len(free) == 1
        self._begins = [free[0], *ends]
        slack = [limit - end for (_, limit), end in zip(placed, ends, strict=True)]
        #: By how much all batches from a position on may end later; ascending, as the begins are.
        self._slack = [*reversed([*accumulate(reversed(slack), min)]), math.inf]

    def positions(self, cost: float, deadline: float) -> range:
        """Return where a batch is in time, as all behind it; with several slots all positions."""
        if not self.is_exact:
            return range(len(self._begins))
        last = bisect_right(self._begins, deadline, key=lambda begin: begin + cost)
        return range(bisect_left(self._slack, cost), last)


class Agenda:
    """Batches of requests to several models on a machine where ``places`` compute at once.

    ``cost`` is called anew for each list. ``batching``: of a model. ``away``: whether no batch of a model
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
        self._places = [_Slot() for _ in range(places)]
        self._sweeps: list[Sweep] = []
        self._expected: dict[Expected, None] = {}
        # How many times as long as their batches expected requests take.
        self._overrun = 1.0

    @property
    def sweeps(self) -> tuple[Sweep, ...]:
        """The batches that wait, in the order in which they will run."""
        return tuple(self._sweeps)

    @property
    def expects(self) -> bool:
        """Whether requests are expected that may take a place before one that comes."""
        return bool(self._expected)

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs, waits or is expected."""
        runs = any(slot.running for slot in self._places)
        return not (self._sweeps or self._expected or runs)

    def admit(self, ticket: Ticket, now: float) -> float | None:
        """Let ``ticket`` in, or refuse it: return None, or in how many seconds it would be let in.

        It joins a batch of its model that has room, else it gets one of its own; as far in front as its
        priority and deadline say, or where that would make a request late, at a position where it does not.
        """
        trial, refusal = self._trial(ticket, now)
        if trial is not None:
            self._sweeps = [batch for batch, _ in trial]
        return refusal

    def ask(
        self, ticket: Ticket, now: float, expected: Expected | None = None, is_read: bool = True
    ) -> float | None:
        """Return what ``admit`` would if all came that is expected before it, and change nothing.

        ``expected``: what stands for the request itself, and does not count. ``is_read``: False if its
        body still comes: a batch that begins meanwhile delays it, since batches are not interrupted.
        """
        seconds = self._expected_seconds(ticket.deadline, now, expected)
        if not is_read:
            seconds += self._blocking_seconds(expected)
        return self.refusal(replace(ticket, deadline=ticket.deadline - seconds), now)

    def refusal(self, ticket: Ticket, now: float) -> float | None:
        """Return what ``admit`` would now, and change nothing."""
        return self._trial(ticket, now)[1]

    def expect(self, model: str, deadline: float, n_bytes: int, now: float) -> Expected:
        """Expect a request whose body of ``n_bytes`` comes from ``now`` on; others are let in alongside."""
        expected = Expected(model, deadline, n_bytes)
        self.expect_still(expected, now)
        return expected

    def expect_still(self, expected: Expected, since: float) -> None:
        """Expect it as long as if it came from ``since`` on."""
        expected.until = since + _EXPECTED_SECONDS + expected.n_bytes / _PACE
        self._expected[expected] = None

    def note_refusal(self, is_late: bool) -> None:
        """Note of a request that was expected whether it was refused late after all.

        Then too many are let in: reading bodies takes the machine, too, which no batch's cost says. All
        that are expected count for more, until late refusals are rare.
        """
        if is_late:
            self._overrun = min(self._overrun + _OVERRUN_OF_REFUSAL, _MAX_OVERRUN)
        else:
            self._overrun += (1.0 - self._overrun) / _OVERRUN_OVER

    def came(self, expected: Expected) -> None:
        """Expect it no longer: it joins, or does not come."""
        self._expected.pop(expected, None)

    def forget(self, model: str) -> None:
        """Expect no more requests to ``model``, which answers none."""
        self._expected = {request: None for request in self._expected if request.model != model}

    def _expected_seconds(self, deadline: float, now: float, excluded: Expected | None) -> float:
        """Return what the requests take that are expected, and have to be answered before ``deadline``."""
        self._expected = {request: None for request in self._expected if request.until > now}
        models = Counter(
            request.model
            for request in self._expected
            if request.deadline <= deadline and request is not excluded
        )
        seconds = 0.0
        for model, count in models.items():
            batch_size = self._batching(model).lanes
            full, rest = divmod(count, batch_size)
            seconds += full * self._cost(model, batch_size) if full else 0.0
            seconds += self._cost(model, rest) if rest else 0.0
        return self._overrun * seconds / len(self._places)

    def _blocking_seconds(self, excluded: Expected | None) -> float:
        """Return what one batch takes at most that may begin before a request has been read.

        The blocking term of the test for deadlines without preemption (Jeffay, Stanat and Martel, "On
        non-preemptive scheduling of periodic and sporadic tasks", RTSS 1991, theorem 4.1).
        """
        running = (batch for slot in self._places for batch in slot.running)
        sizes = {(batch.model, len(batch.tickets)) for batch in (*self._sweeps, *running)}
        sizes |= {(request.model, 1) for request in self._expected if request is not excluded}
        return max((self._cost(*size) for size in sizes), default=0.0)

    def _trial(self, ticket: Ticket, now: float) -> tuple[_Placed | None, float | None]:
        """Return a list that has ``ticket``, too, and in which every batch is in time.

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
        """Take the next batch that begins now out of the list; None: none does.

        ``can``: whether a batch of a model may begin. The first one that can begins; it goes before others
        only where that makes none of them late. One with room for more requests waits for them, as long as
        that makes none late, and nothing idles where another batch would have to wait for it.
        """
        if not self._sweeps:
            return None
        slot = min(self._places, key=lambda slot: (len(slot.running), slot.until))
        if len(slot.running) == _BATCHES_PER_SLOT:
            return None
        placed: _Placed = []  # made where it is needed
        barred: set[str] = set()
        waits: int | None = None
        for position, batch in enumerate(self._sweeps):
            if batch.model in barred or not can(batch.model):
                barred.add(batch.model)
                continue
            ready = self._batching(batch.model).ready_at(batch)
            is_first = position == 0 and not slot.running
            if ready <= now and is_first:
                return self._begin(position, slot, now)
            placed = placed or self._placed(self._ends(self._sweeps, now))
            if ready > now and self._keeps(placed, ready):
                waits = position if waits is None else waits
                continue
            if is_first or self._may_go(position, slot, placed, now):
                return self._begin(position, slot, now)
            if waits is None or slot.running:
                continue
            if waits == 0 or self._may_go(waits, slot, placed, now):
                return self._begin(waits, slot, now)
        return None

    def _begin(self, position: int, slot: _Slot, now: float) -> Sweep:
        """Take a batch out of the list, which begins in ``slot``."""
        batch = self._sweeps[position]
        # Since its requests joined, the model may have got a plan with fewer lanes.
        begins, rest = batch.split(self._batching(batch.model).lanes)
        self._sweeps[position : position + 1] = [rest] if rest.tickets else []
        slot.until = max(slot.until, now) + self._cost_of(begins)
        slot.running.append(begins)
        return begins

    def end(self, batch: Sweep, now: float) -> None:
        """Note that ``batch`` has ended, with or without an answer."""
        for slot in self._places:
            if batch in slot.running:
                slot.running.remove(batch)
                running_cost = sum(map(self._cost_of, slot.running))
                slot.until = min(slot.until, now + running_cost)

    def leave(self, ticket: Ticket) -> None:
        """Take ``ticket`` out, if it waits."""
        for position, batch in enumerate(self._sweeps):
            if ticket in batch.tickets:
                rest = batch.without(ticket)
                self._sweeps[position : position + 1] = [rest] if rest.tickets else []
                return

    def waits(self, now: float) -> dict[str, float]:
        """Return of each model until when the first of its batches waits for more requests, if one does."""
        waits: dict[str, float] = {}
        for batch in self._sweeps:
            ready = self._batching(batch.model).ready_at(batch)
            if ready > now:
                waits[batch.model] = min(ready, waits.get(batch.model, ready))
        return waits

    def _trials(self, ticket: Ticket, ends: list[float], now: float) -> Iterator[_Placed]:
        """Yield lists that have ``ticket``, too, first those that suit its rank best."""
        placed = self._placed(ends)
        rank, batch_size = (ticket.priority, ticket.deadline), self._batching(ticket.model).lanes
        first = next((i for i, (batch, _) in enumerate(placed) if batch.rank > rank), len(placed))
        for position, (batch, limit) in enumerate(placed if batch_size > 1 else ()):
            if batch.model == ticket.model and len(batch.tickets) < batch_size:
                joined = batch.joined(ticket), min(limit, ticket.deadline)
                others = [*placed[:position], *placed[position + 1 :]]
                for earlier in range(min(first, position), position + 1):
                    yield [*others[:earlier], joined, *others[earlier:]]
        added = Sweep(ticket.model, (ticket,)), ticket.deadline
        room = _Room(placed, ends, self._free(now))
        positions = room.positions(self._cost_of(added[0]), ticket.deadline)
        for position in sorted(positions, key=lambda index: (index < first, abs(index - first))):
            yield [*placed[:position], added, *placed[position:]]
        # The order by deadline is in time wherever any order is. If the list has that order already, this
        # trial was among those above.
        if not (room.is_exact and _is_by_limit(placed)):
            yield sorted([*placed, added], key=_limit)

    def _may_go(self, position: int, slot: _Slot, placed: _Placed, now: float) -> bool:
        """Return whether the batch at ``position`` may begin in ``slot`` before those in front of it.

        Alongside a running batch it may only if that one is in time even if all of this batch delays it.
        """
        until = max(slot.until, now) + self._cost_of(placed[position][0])
        if any(until > batch.deadline for batch in slot.running):
            return False
        others = [*placed[:position], *placed[position + 1 :]]
        return self._keeps([placed[position], *others], now)

    def _placed(self, ends: Iterable[float]) -> _Placed:
        """Return the batches with their limits: their deadlines, or for late ones their ``ends``."""
        if not self._sweeps:
            return []
        away = cache(self._away)
        return [
            (batch, math.inf if away(batch.model) else max(batch.deadline, end))
            for batch, end in zip(self._sweeps, ends, strict=True)
        ]

    def _keeps(self, placed: _Placed, now: float) -> bool:
        """Return whether each batch of a list ends by its limit if they run in this order."""
        ends = self._ends((batch for batch, _ in placed), now)
        return all(end <= limit for end, (_, limit) in zip(ends, placed, strict=True))

    def _ends(self, batches: Iterable[Sweep], now: float) -> Iterator[float]:
        """Yield when each of ``batches`` ends, if each begins in the slot that is free first."""
        free, costs = self._free(now), dict[tuple[str, int], float]()
        for batch in batches:
            size = batch.model, len(batch.tickets)
            if size not in costs:  # a long list has few different models and sizes
                costs[size] = self._cost(*size)
            end = free[0] + costs[size]
            heapq.heapreplace(free, end)
            yield end

    def _free(self, now: float) -> list[float]:
        """Return when each slot is free, as a heap."""
        return sorted([max(slot.until, now) for slot in self._places])

    def _cost_of(self, batch: Sweep) -> float:
        return self._cost(batch.model, len(batch.tickets))


def _limit(item: tuple[Sweep, float]) -> float:
    return item[1]


def _is_by_limit(placed: _Placed) -> bool:
    return all(before <= after for (_, before), (_, after) in pairwise(placed))
