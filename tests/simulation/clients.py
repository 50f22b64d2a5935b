"""What clients do, and what they may be answered."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.simulation.drawing import all_fit
from tests.simulation.faults import KERNEL_SECONDS, Machine
from tests.simulation.files import Files
from tests.simulation.network import Client
from tests.simulation.plan import MODELS, Operation, Plan
from tests.simulation.simulator import BrokenError

#: Refusals are sent so late at max_before: 20 ms after their requests, and what turns of the loop take.
_REFUSAL_SECONDS = 0.021
#: No refusal comes sooner after the answer before it on its connection: 20 ms, less a slice of the loop.
_PAUSE_SECONDS = 0.0185
#: Nothing that a request waits for begins so long after all else has ended.
_IDLE_SECONDS = 1.0
#: What an answer takes after its batch, by the longest that was seen: a batch has to end as much earlier.
_OUTSIDE_SECONDS = 0.2
#: A client that pauses for longer between two pieces is a slow one.
_PAUSE_LIMIT = 0.1
_OUT_OF_TIME = ("deadline_exceeded", "late", "busy")
#: What a request may be answered, by code: always, where a model may be absent, and after faults.
_CODES = {"": 200, "busy": 503, "late": 503, "deadline_exceeded": 504}
_ABSENT_CODES = {
    "not_loaded": 404,
    "not_found": 404,
    "over_budget": 409,
    "loading": 503,
    "not_serving": 503,
}
_FAULT_CODES = dict.fromkeys(
    (
        "engine_failed",
        "model_invalid",
        "out_of_memory",
        "read_failed",
        "storage_failed",
        "system_failed",
    ),
    503,
)
#: Inputs and answers of models, by variant.
Answers = dict[tuple[str, str], tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]


class Clients:
    """Connects by ``connect``, to a service that serves models of ``files``.

    ``machine``: on which the service runs. The event loop computes short answers itself, so a kernel of
    theirs that takes long holds up all others: what is due meanwhile is due at its end.
    """

    def __init__(
        self,
        plan: Plan,
        files: Files,
        answers: Answers,
        reached: Counter[str],
        connect: Callable[[Operation], Client],
        machine: Machine,
    ) -> None:
        self._plan, self._files, self._answers = plan, files, answers
        self._reached, self._connect, self._machine = reached, connect, machine
        kinds = {operation.kind for operation in plan.operations}
        self._is_steady = not kinds - {"infer", "look"} and not plan.faults
        self._has_slow_clients = any(
            operation.pause > _PAUSE_LIMIT or operation.read_delay for operation in plan.operations
        )
        self._changes_files = bool(kinds & {"damage", "remove"})
        self._all_fit = all_fit(plan) and "close_after" not in plan.settings
        self._inputs = {model: _input(answers[model, "a"][0]) for model in MODELS}
        #: Models that a client loaded or unloaded.
        self.unsure: set[str] = set()
        #: Of one model the version that the last load answered has served at least.
        self._floors: Counter[str] = Counter()
        #: Whether the service ends, so that requests may be refused or cut off.
        self.is_ending = False
        self._waiting = 0
        self._max_waiting = 0

    async def infer(self, operation: Operation) -> None:
        """Send requests, and judge their answers."""
        loop = asyncio.get_running_loop()
        client = self._connect(operation)
        data = self._body(operation) * operation.count
        leaving = asyncio.create_task(_leave(client, operation))
        floor = self._floors[operation.model]
        self._waiting += operation.count
        max_before, self._max_waiting = self._max_waiting, self._waiting
        started_at = loop.time()
        while data and not client.wire.is_closed:
            client.send(data[: operation.piece])
            data = data[operation.piece :]
            if data:
                await asyncio.sleep(operation.pause)
        sent_at, before = loop.time(), None
        # What comes too slowly for its own timeout is refused for that, at once.
        is_slow = sent_at - started_at >= operation.timeout
        answer: tuple[int, bytes] | None = (0, b"")
        for _ in range(operation.count):
            answer = await client.answer()
            if answer is None:
                break
            started_at = started_at if client.read_at is None else client.read_at
            code = self._judge(operation, answer, floor)
            due = started_at + max(operation.timeout, sent_at - started_at)
            # The limit in a long body is not answers before all of it was read, for which it needs memory.
            is_unknown = bool(operation.padding) and code in ("late", "too_large")
            is_judged = not (operation.read_delay or is_unknown)
            if is_judged and not self.is_ending:
                self._check_time(operation, code, due, loop.time())
                if code in ("busy", "late") and before is not None and not is_slow:
                    _check_pause(operation, loop.time() - before)
                self._check_progress(operation, code, loop.time(), started_at)
            if self._is_steady:
                self._check_reason(operation, code)
            # An answer that came while the client still sent has come some time before.
            before = loop.time() if client.has_waited else None
        self._waiting -= operation.count
        self._max_waiting = max(max_before, self._max_waiting)
        leaving.cancel()
        is_awaited = operation.leaves is None and operation.count == 1 and not self.is_ending
        if answer is None and is_awaited:
            raise BrokenError(f"no answer: {operation}")
        client.leave()

    def _body(self, operation: Operation) -> bytes:
        parameters = {"timeout": round(operation.timeout * 1e6), "priority": operation.priority}
        body = b'{"parameters": %s, "inputs": [%s]}%s' % (
            json.dumps(parameters).encode(),
            self._inputs[operation.model],
            b" " * operation.padding,
        )
        return request(b"POST", f"/v2/models/{operation.model}/infer".encode(), body)

    def _judge(self, operation: Operation, answer: tuple[int, bytes], floor: int) -> str:
        """Check an answer but for its time; return the code of its error, "" if it has none."""
        status, body = answer
        document = json.loads(body)
        code = "" if status == 200 else document["code"]
        self._reached[f"infer: {code or 'answered'}"] += 1
        allowed = dict(_CODES)
        if self._may_be_absent:
            allowed |= _ABSENT_CODES
        if self._plan.faults or self._changes_files:
            allowed |= _FAULT_CODES
        if operation.pause > 0.1 or operation.read_delay or operation.leaves is not None:
            allowed |= {"stalled": 408}
        if operation.padding:
            allowed |= {"too_large": 413}
        if operation.leaves is not None and code == "invalid_request":
            return code
        if allowed.get(code) != status and not (self.is_ending and status == 503):
            raise BrokenError(f"status {status}: {body[:300]!r}: {operation}")
        if not code:
            self._check_answer(operation, document, floor)
        return code

    @property
    def _may_be_absent(self) -> bool:
        return not self._is_steady or not self._all_fit

    def _check_answer(self, operation: Operation, document: Any, floor: int) -> None:
        version = document["model_version"]
        values = np.array(document["outputs"][0]["data"], np.float32)
        variant = self._files.variant(operation.model, version)
        variants = ("a", "b") if variant is None else (variant,)
        if not any(
            np.array_equal(values, self._answers[operation.model, one][1]) for one in variants
        ):
            raise BrokenError(f"a wrong answer: {operation}")
        if int(version) < floor:
            raise BrokenError(f"version {version} answers after {floor} was loaded: {operation}")

    def _check_time(self, operation: Operation, code: str, due: float, now: float) -> None:
        longest = _REFUSAL_SECONDS if code else KERNEL_SECONDS[1]
        for start, end in self._machine.busy_loop:
            if start <= due + longest:
                due = max(due, end)
        if operation.count == 1 and now - due > longest:
            raise BrokenError(f"{code or 'an answer'} came {now - due:.6f} s late: {operation}")

    def _check_reason(self, operation: Operation, code: str) -> None:
        """Check that it is not refused for others where there were none, or next to none."""
        settings = self._plan.settings
        limit = min(settings["queue_limit"], self._plan.connections, 20)
        has_memory = settings["request_memory"] >= 1 << 20 or not operation.padding
        is_light = self._max_waiting < limit and "max_connections_per_address" not in settings
        if code == "busy" and is_light and has_memory and self._all_fit:
            raise BrokenError(f"busy with {self._max_waiting} requests: {operation}")
        if code == "late" and is_light and self._all_fit and operation.timeout >= 5.0:
            raise BrokenError(f"late with {self._max_waiting} requests: {operation}")

    def _check_progress(
        self, operation: Operation, code: str, now: float, started_at: float
    ) -> None:
        """Check that its deadline was near, and that something was done meanwhile.

        Else what it waited for was lost: memory too, unless a slow client may have that.
        """
        waited = now - started_at
        if code == "deadline_exceeded" and waited < operation.timeout / 2 - _OUTSIDE_SECONDS:
            raise BrokenError(f"{code} after {waited:.6f} s: {operation}")
        idle = min(now - self._machine.idle_since, waited)
        codes = ("deadline_exceeded",) if self._has_slow_clients else _OUT_OF_TIME
        if code in codes and idle > _IDLE_SECONDS and operation.pause <= _PAUSE_LIMIT:
            raise BrokenError(f"{code}, and nothing was done for {idle:.6f} s: {operation}")

    async def change(self, operation: Operation) -> None:
        """Load, unload, replan or upload a model."""
        model, kind = operation.model, operation.kind
        self.unsure.add(model)
        versions = self._files.versions(model)
        body = b"{}"
        if kind == "replan":
            body = b'{"memory_bytes": %s}' % (str(operation.n_bytes or "null").encode())
        elif kind == "upload":
            body = b"bad" if operation.n_bytes else b"x" * 3000
        path = f"/v2/repository/models/{model}/{kind}".encode()
        answer = await self.ask(operation, b"POST", path, body)
        if answer is None:
            return
        status, text = answer
        # An uploaded version that lacks memory is there, and is loaded later.
        is_loaded = kind == "load" or (kind == "upload" and b'"state":"READY"' in text)
        if is_loaded and status == 200:
            now = self._files.versions(model)
            if versions and now[: len(versions)] == versions:
                self._floors[model] = max(self._floors[model], versions[-1])
        if status == 500:
            raise BrokenError(f"status 500: {answer[1][:300]!r}: {operation}")

    def removed(self, model: str) -> None:
        """Note that versions of ``model`` are gone: older ones may answer."""
        self._floors[model] = 0

    async def ask(
        self, operation: Operation, method: bytes, path: bytes, body: bytes = b""
    ) -> tuple[int, bytes] | None:
        """Send a request, and return its answer; None: the client left, or the service ends."""
        client = self._connect(operation)
        client.send(request(method, path, body))
        leaving = asyncio.create_task(_leave(client, operation))
        answer = await client.answer()
        leaving.cancel()
        if answer is None and operation.leaves is None and not self.is_ending:
            raise BrokenError(f"no answer: {operation}")
        if answer is not None:
            self._reached[f"{operation.kind}: {answer[0]}"] += 1
        client.leave()
        return answer


def _input(x: np.ndarray[Any, Any]) -> bytes:
    tensor = {"name": "x", "datatype": "FP32", "shape": list(x.shape), "data": x.ravel().tolist()}
    return json.dumps(tensor).encode()


async def _leave(client: Client, operation: Operation) -> None:
    if operation.leaves is not None:
        await asyncio.sleep(operation.leaves)
        client.leave(operation.manner)


def _check_pause(operation: Operation, seconds: float) -> None:
    if seconds < _PAUSE_SECONDS:
        raise BrokenError(f"refused {seconds:.6f} s after an answer: {operation}")


def request(method: bytes, path: bytes, body: bytes) -> bytes:
    """Return the bytes of a request."""
    head = b"%s %s HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n" % (
        method,
        path,
    )
    return b"%scontent-length: %d\r\n\r\n%s" % (head, len(body), body)
