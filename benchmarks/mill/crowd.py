"""A crowd of connections that costs its player next to nothing: one thread, one epoll, no asyncio.

Two cores hold server, good clients and attackers; what ten thousand tasks cost would be counted as harm
that the server does. Connections open at a bounded pace, say the same thing, drip a byte now and then, and
are opened again at that pace when the server ends them.
"""

import heapq
import select
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

_TICK_SECONDS = 0.02
_READ_BYTES = 4096


@dataclass(frozen=True)
class Crowd:
    """``size`` connections; each says ``opening`` at once and ``drip`` every second.

    ``pace``: how many are opened in a second, at most. ``stays``: one that the server has ended stays until
    it is cut off. ``resets``: it is reset where its first drip would be.
    """

    size: int
    opening: bytes = b""
    drip: bytes = b""
    pace: int = 500
    stays: bool = False
    resets: bool = False


def spread(count: int) -> list[str]:
    """Return ``count`` loopback addresses, none of which a good client has."""
    return [f"127.{1 + index // 250}.0.{1 + index % 250}" for index in range(count)]


class Siege:
    """One run of a ``crowd`` from ``addresses`` against ``port``; ``seen`` counts what came of it.

    ``seen``: connections "opened" and "ended" by the server, the status of the answer where there was one,
    "refused" where none could be opened, and "held", the most that were open at once.
    """

    def __init__(self, crowd: Crowd, port: int, addresses: Sequence[str]) -> None:
        self.seen: Counter[str] = Counter()
        self._crowd, self._port, self._addresses = crowd, port, addresses
        self._open: dict[int, socket.socket] = {}
        self._drips: list[tuple[float, int, int]] = []  # when, which opening, its descriptor
        self._epoll = select.epoll()

    def play(self, seconds: float, over: threading.Event | None = None) -> None:
        """Hold out for ``seconds``, or until it is ``over``, then close all."""
        over = over or threading.Event()
        tick = time.monotonic()
        end = tick + seconds
        try:
            while (now := time.monotonic()) < end and not over.is_set():
                if now >= tick:
                    tick = now + _TICK_SECONDS
                    self._fill(now)
                    self._drip(now)
                for descriptor, events in self._epoll.poll(max(0.0, tick - now)):
                    self._hear(descriptor, bool(events & select.EPOLLHUP))
        finally:
            for each in self._open.values():
                each.close()
            self._epoll.close()

    def _fill(self, now: float) -> None:
        wanted = self._crowd.size - len(self._open)
        for _ in range(min(wanted, max(1, int(self._crowd.pace * _TICK_SECONDS)))):
            self._begin(now)
        self.seen["held"] = max(self.seen["held"], len(self._open))

    def _begin(self, now: float) -> None:
        number = self.seen["opened"] + self.seen["refused"]
        client = socket.socket()
        client.setblocking(False)
        try:
            client.bind((self._addresses[number % len(self._addresses)], 0))
            client.connect_ex(("127.0.0.1", self._port))  # loopback: done, unless the queue is full
            if self._crowd.opening:
                client.send(self._crowd.opening)
        except OSError:
            client.close()
            self.seen["refused"] += 1
            return
        self.seen["opened"] += 1
        self._open[client.fileno()] = client
        self._epoll.register(client.fileno(), select.EPOLLIN)
        if self._crowd.drip or self._crowd.resets:
            heapq.heappush(self._drips, (now + 1, number, client.fileno()))

    def _drip(self, now: float) -> None:
        while self._drips and self._drips[0][0] <= now:
            _, number, descriptor = heapq.heappop(self._drips)
            if descriptor in self._open and self._crowd.resets:
                self._reset(descriptor)
            elif descriptor in self._open:
                try:
                    self._open[descriptor].send(self._crowd.drip)
                except OSError:
                    continue  # its end is heard of
                heapq.heappush(self._drips, (now + 1, number, descriptor))

    def _reset(self, descriptor: int) -> None:
        self.seen["reset"] += 1
        self._epoll.unregister(descriptor)
        client = self._open.pop(descriptor)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()

    def _hear(self, descriptor: int, is_cut_off: bool) -> None:
        try:
            data = self._open[descriptor].recv(_READ_BYTES)
        except OSError:
            data = b""
        if data.startswith(b"HTTP/1."):
            self.seen[data[9:12].decode("ascii", "replace")] += 1
        if not data and self._crowd.stays and not is_cut_off:
            self._epoll.modify(descriptor, 0)  # only an end by the server is reported to it
        elif not data:
            self.seen["ended"] += 1
            self._epoll.unregister(descriptor)
            self._open.pop(descriptor).close()
