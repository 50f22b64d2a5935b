"""Closed-loop load: so many clients, each of which sends the next request when it has its answer."""

import selectors
import time
from collections import Counter
from typing import Any

from benchmarks.load.figures import summary_ms
from benchmarks.load.kept import Kept


def closed_loop(port: int, request: bytes, clients: int, seconds: float) -> dict[str, Any]:
    """Return what ``clients`` kept connections got in ``seconds``: statuses, answers a second, delays.

    A connection that ends is counted as "ended" and opened again.
    """
    selector = selectors.DefaultSelector()
    statuses: Counter[str] = Counter()
    delays: list[float] = []
    started = time.perf_counter()
    end = started + seconds
    for _ in range(clients):
        Kept(selector, port).send(request)
    while (now := time.perf_counter()) < end:
        for key, events in selector.select(end - now):
            _go_on(key.data, events, request, statuses, delays)
    elapsed = time.perf_counter() - started
    for key in list(selector.get_map().values()):
        key.data.close()
    selector.close()
    return {
        "seconds": round(elapsed, 3),
        "statuses": dict(statuses),
        "answers": sum(count for status, count in statuses.items() if status != "ended"),
        "per_second": round(statuses["200"] / elapsed, 2),
        "delay": summary_ms(delays),
    }


def _go_on(
    client: Kept, events: int, request: bytes, statuses: Counter[str], delays: list[float]
) -> None:
    try:
        if events & selectors.EVENT_WRITE:
            client.write()
        if not events & selectors.EVENT_READ:
            return
        response = client.receive()
    except OSError:
        statuses["ended"] += 1
        client.again(request)
        return
    if response is None:
        return
    statuses[str(response.status)] += 1
    if response.status == 200:
        delays.append(time.perf_counter() - client.sent_at)
    if response.closes or not client.is_reusable:
        client.again(request)
    else:
        client.send(request)
