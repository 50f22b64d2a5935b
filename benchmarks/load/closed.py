"""Closed-loop load: so many clients, each of which sends the next request when it has its answer."""

import random
import selectors
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.load.kept import Answers, KeptConnection, receive_all


def closed_loop(
    port: int,
    requests: Sequence[bytes],
    clients: int,
    seconds: float,
    deadline: float | None = None,
) -> dict[str, Any]:
    """Return what ``clients`` kept connections got in ``seconds``: statuses, answers a second, delays.

    Each sends one of ``requests``, drawn. A connection that ends is counted as "ended" and opened again.
    ``deadline``: as Answers.
    """
    draw = random.Random(0).choice
    selector = selectors.DefaultSelector()
    answers = Answers(deadline)
    started = time.perf_counter()
    end = started + seconds
    for _ in range(clients):
        KeptConnection(selector, port).send(draw(requests))
    while (now := time.perf_counter()) < end:
        for client, response in receive_all(selector, end - now):
            if response is None:
                answers.statuses["ended"] += 1
                client.again(draw(requests))
                continue
            answers.count(response.status, client)
            if response.closes or not client.is_reusable:
                client.again(draw(requests))
            else:
                client.send(draw(requests))
    elapsed = time.perf_counter() - started
    for key in list(selector.get_map().values()):
        key.data.close()
    selector.close()
    return {
        "seconds": round(elapsed, 3),
        "answers": sum(count for status, count in answers.statuses.items() if status != "ended"),
        "per_second": round(answers.statuses["200"] / elapsed, 2),
        **answers.figures(),
    }
