"""Mixed load: kept connections ask several models, and every answer is compared with what is right."""

import http.client
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.packs.manifest import checksum

Array = NDArray[Any]
_SECONDS = 120.0
# Before a client tries again when the server does not answer at all.
_PAUSE_SECONDS = 0.5


@dataclass(frozen=True)
class AskedModel:
    """An infer request to ``model`` and its right outputs by name; each may differ by so much at most."""

    model: str
    body: bytes
    right: dict[str, Array]
    tolerances: dict[str, float]

    def fault(self, answer: bytes) -> str:
        """Return what is wrong with an answer, empty: nothing."""
        outputs = {item["name"]: item for item in json.loads(answer)["outputs"]}
        for name, right in self.right.items():
            if name not in outputs:
                return f"{self.model}: no output {name!r}"
            found = np.asarray(outputs[name]["data"], right.dtype).reshape(right.shape)
            apart = float(np.abs(found - right).max(initial=0.0))
            if not apart <= self.tolerances[name]:
                return f"{self.model}: output {name!r} is off by {apart:.2e}"
        return ""


@dataclass
class LoadResult:
    """What came of it: right answers by model, all statuses, what was wrong, seconds by model."""

    right: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    delays: dict[str, list[float]] = field(default_factory=dict)


class MixedLoad:
    """``connections`` clients, each of which asks one of ``questions`` after the other for ``seconds``.

    An answer that is byte for byte one that was right is right; another one is compared number by number.
    """

    def __init__(self, port: int, questions: Sequence[AskedModel], connections: int) -> None:
        self._port = port
        self._questions = questions
        self._connections = connections
        self._known: list[set[str]] = [set() for _ in questions]
        self._lock = threading.Lock()
        self.load = LoadResult()

    def run(self, seconds: float) -> LoadResult:
        """Return what came of it when all clients have their last answer."""
        end = time.monotonic() + seconds
        clients = [
            threading.Thread(target=self._client, args=(number, end))
            for number in range(self._connections)
        ]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        return self.load

    def _client(self, number: int, end: float) -> None:
        order = random.Random(number)
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_SECONDS)
        while time.monotonic() < end:
            chosen = order.randrange(len(self._questions))
            try:
                self._ask(connection, chosen)
            except (OSError, http.client.HTTPException) as exc:
                self._wrong(f"{self._questions[chosen].model}: {exc!r}")
                connection.close()  # and opens again with the next request
                time.sleep(_PAUSE_SECONDS)
        connection.close()

    def _ask(self, connection: http.client.HTTPConnection, chosen: int) -> None:
        question = self._questions[chosen]
        began = time.monotonic()
        headers = {"Content-Type": "application/json"}
        connection.request("POST", f"/v2/models/{question.model}/infer", question.body, headers)
        response = connection.getresponse()
        answer = response.read()
        took = time.monotonic() - began
        with self._lock:
            self.load.statuses[response.status] += 1
        if response.status != http.client.OK:
            self._wrong(f"{question.model}: {response.status} {answer[:200]!r}")
            return
        seen = checksum(answer)
        fault = "" if seen in self._known[chosen] else question.fault(answer)
        if fault:
            self._wrong(fault)
            return
        with self._lock:
            self._known[chosen].add(seen)
            self.load.right[question.model] += 1
            self.load.delays.setdefault(question.model, []).append(took)

    def _wrong(self, fault: str) -> None:
        with self._lock:
            self.load.faults.append(fault)
