"""Paced load: so many clients on kept connections, each of which asks at a rate of its own.

A server may close a kept connection between two requests: the client opens another for the next one. A
request is lost that was sent and got no answer: many HTTP clients send none twice.
"""

import heapq
import random
import selectors
import time
from collections import Counter
from typing import Any

from benchmarks.load.kept import KeptConnection, receive_all
from benchmarks.load.percentiles import summary_ms

_DRAIN_SECONDS = 10.0


class _Paced:
    def __init__(self, port: int, request: bytes, clients: int, rate: float, within: float) -> None:
        self._port, self._request, self._period = port, request, 1 / rate
        self._within = within
        self._selector = selectors.DefaultSelector()
        self._kept: list[KeptConnection | None] = [None] * clients
        self._owners: dict[KeptConnection, int] = {}
        self.outcomes: Counter[str] = Counter()
        self.delays: list[float] = []
        self.sent = self.opened = self.postponed = 0

    def run(self, seconds: float) -> None:
        draw = random.Random(0)
        start = time.perf_counter()
        end = start + seconds
        width = min(self._within, self._period)
        due = [(start + draw.random() * width, index) for index in range(len(self._kept))]
        heapq.heapify(due)
        while (now := time.perf_counter()) < end:
            while due[0][0] <= now:
                when, index = due[0]
                heapq.heapreplace(due, (when + self._period, index))
                self._ask(index)
            self._serve(min(due[0][0], end) - time.perf_counter())
        while self._busy() and time.perf_counter() < end + _DRAIN_SECONDS:
            self._serve(0.1)
        self.outcomes["no answer"] += self._busy()
        for client in self._owners:
            client.close()
        self._selector.close()

    def _busy(self) -> int:
        return sum(client.is_busy for client in self._owners)

    def _ask(self, index: int) -> None:
        client = self._kept[index]
        if client is not None and client.is_busy:
            self.postponed += 1
            return
        self.sent += 1
        try:
            if client is None:
                client = KeptConnection(self._selector, self._port)
                self._kept[index] = client
                self._owners[client] = index
                self.opened += 1
            client.send(self._request)
        except OSError:
            self.outcomes["lost"] += 1
            if client is not None:
                self._drop(client)

    def _drop(self, client: KeptConnection) -> None:
        self._kept[self._owners.pop(client)] = None
        client.close()

    def _serve(self, seconds: float) -> None:
        for client, response in receive_all(self._selector, seconds):
            if response is None:
                self.outcomes["lost"] += client.is_busy
                self._drop(client)
                continue
            outcome = str(response.status)
            if response.status == 503 and response.header("retry-after") is None:
                outcome = "503 without Retry-After"
            self.outcomes[outcome] += 1
            if response.status == 200:
                self.delays.append(time.perf_counter() - client.sent_at)
            if response.closes or not client.is_reusable:
                self._drop(client)


def paced_loop(
    port: int,
    request: bytes,
    clients: int,
    seconds: float,
    rate: float = 1.0,
    within: float = 1.0,
) -> dict[str, Any]:
    """Return what ``clients`` got that ask ``rate`` times a second each, on kept connections.

    ``within``: seconds over which those that ask in one period are spread; 0: all ask at once.

    ``outcomes``: statuses, "lost" (the connection ended without an answer), "no answer" (within 10 s of
    the end). ``opened``: connections in all; ``postponed``: times at which the answer before was missing.
    """
    run = _Paced(port, request, clients, rate, within)
    run.run(seconds)
    return {
        "sent": run.sent,
        "outcomes": {name: count for name, count in run.outcomes.items() if count},
        "opened": run.opened,
        "postponed": run.postponed,
        "delay": summary_ms(run.delays),
    }
