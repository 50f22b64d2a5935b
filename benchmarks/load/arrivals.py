"""Open-loop load: requests come at random times (Poisson), whether or not earlier ones were answered."""

import random
import selectors
import time
from dataclasses import dataclass, field
from typing import Any

from benchmarks.load.kept import Answers, KeptConnection, receive_all
from benchmarks.load.percentiles import summary_ms


@dataclass(frozen=True)
class ArrivalRate:
    """So many requests a second for so long, over at most ``connections`` kept ones.

    Each is one of ``requests``, drawn.
    ``deadline`` is what the requests themselves ask for, in seconds; answers after it are counted.
    """

    port: int
    requests: tuple[bytes, ...]
    rate: float
    seconds: float
    connections: int = 128
    addresses: tuple[str, ...] = ("127.0.0.1",)
    drain: float = 10.0
    deadline: float | None = None
    seed: int = 0


@dataclass
class _Tally:
    answers: Answers
    lateness: list[float] = field(default_factory=list)
    in_time: int = (
        0  # answered 200 before the arrivals ended, and before the deadline if there is one
    )
    unsent: int = 0
    ended: int = 0


class _Run:
    def __init__(self, arrivals: ArrivalRate) -> None:
        self._given = arrivals
        self._random = random.Random(arrivals.seed)
        self._selector = selectors.DefaultSelector()
        self._idle: list[KeptConnection] = []
        self._open = 0
        self.tally = _Tally(Answers(arrivals.deadline))

    def run(self) -> None:
        """Let them arrive, then wait for the last answers, ``drain`` seconds at most."""
        now = time.perf_counter()
        self._end = now + self._given.seconds
        arrival = now + self._random.expovariate(self._given.rate)
        while now < self._end:
            while arrival <= now:
                self.tally.lateness.append(now - arrival)
                self._arrive()
                arrival += self._random.expovariate(self._given.rate)
            self._serve(min(arrival, self._end) - now)
            now = time.perf_counter()
        while self._busy() and now < self._end + self._given.drain:
            self._serve(0.1)
            now = time.perf_counter()
        self.tally.answers.statuses["none"] += len(self._busy())
        for client in self._clients():
            client.close()
        self._selector.close()

    def _clients(self) -> list[KeptConnection]:
        return [key.data for key in self._selector.get_map().values()]

    def _busy(self) -> list[KeptConnection]:
        return [client for client in self._clients() if client.is_busy]

    def _arrive(self) -> None:
        client = self._idle.pop() if self._idle else self._connected()
        if client is None:
            self.tally.unsent += 1
            return
        try:
            client.send(self._random.choice(self._given.requests))
        except OSError:
            self._lose(client)

    def _connected(self) -> KeptConnection | None:
        if self._open >= self._given.connections:
            return None
        addresses = self._given.addresses
        try:
            client = KeptConnection(
                self._selector, self._given.port, addresses[self._open % len(addresses)]
            )
        except OSError:
            return None
        self._open += 1
        return client

    def _lose(self, client: KeptConnection) -> None:
        if client.is_busy:
            self.tally.ended += 1
        else:
            self._idle.remove(client)
        self._drop(client)

    def _drop(self, client: KeptConnection) -> None:
        client.close()
        self._open -= 1

    def _serve(self, seconds: float) -> None:
        for client, response in receive_all(self._selector, seconds):
            if response is None:
                self._lose(client)
                continue
            self._count(response.status, client)
            if response.closes or not client.is_reusable:
                self._drop(client)
            else:
                self._idle.append(client)

    def _count(self, status: int, client: KeptConnection) -> None:
        self.tally.answers.count(status, client)
        deadline = self._given.deadline
        now = time.perf_counter()
        is_late = deadline is not None and now - client.sent_at > deadline
        self.tally.in_time += status == 200 and now <= self._end and not is_late


def open_loop(arrivals: ArrivalRate) -> dict[str, Any]:
    """Return what came of ``arrivals``.

    ``goodput`` counts answers of status 200, in time, a second while requests arrived; delays count from
    sending.
    ``unsent`` found every connection busy, ``client_late`` is how late this process itself was.
    """
    run = _Run(arrivals)
    run.run()
    tally = run.tally
    return {
        "rate": round(arrivals.rate, 2),
        "arrived": len(tally.lateness),
        "unsent": tally.unsent,
        "ended": tally.ended,
        "goodput": round(tally.in_time / arrivals.seconds, 2),
        "client_late": summary_ms(tally.lateness),
        **tally.answers.figures(),
    }
