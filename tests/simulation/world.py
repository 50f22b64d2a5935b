"""One run: the real service on simulated threads, disk and network; what must hold is checked all along.

Always true:

- What the budget's books hold is at most the budget.
- Each request of a client that stays has one answer, by its deadline and what one kernel takes; refusals
  come 20 ms after their requests, which may be later.
- An answer is the network's, bit by bit, or an error that the table of errors has.
- No thread and no callback of the loop fails, and nothing is logged as a fault of ours.
- When faults have ended and time has passed, each model that was not unloaded serves again, and answers.
- After the end no request holds memory, no task and no thread is left.
"""

import asyncio
import gc
import json
import logging
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from loader.errors import ReadError
from tests.simulation.loop import Loop
from tests.simulation.network import Client
from tests.simulation.outcome import Outcome
from tests.simulation.plan import ALL_FIT, MODELS, Fault, Operation, Plan
from tests.simulation.simulator import START, Simulation, begin
from tests.simulation.threads import Thread

#: Refusals are sent so late at most: 20 ms after their requests, and what turns of the loop take.
_REFUSAL_SECONDS = 0.021
_KERNEL_SECONDS = (20e-6, 600e-6)
_READ_SECONDS = (20e-6, 3e-3)
#: All that failed has been tried again by then.
_CALM_SECONDS = 70.0
_WAIT_SECONDS = 600.0
#: Statuses that a request of a run may have.
_STATUSES = {200, 503, 504}
#: Where models are unloaded or do not all fit.
_ABSENT_STATUSES = {404, 409}


class BrokenError(AssertionError):
    """Something that must hold did not."""


class Disk:
    """Reads take drawn times, and some meet a fault."""

    def __init__(self, run: Simulation, faults: tuple[Fault, ...], reached: Counter[str]) -> None:
        self._run, self._reached = run, reached
        self._faults = {fault.read: fault for fault in faults}
        self._count = 0
        #: Whether reads count, and faults strike.
        self.is_struck = False

    def read(self, reader: Any, read_into: Any, offset: int, target: memoryview) -> None:
        """Read as ``read_into`` does, later and with a fault if one is planned."""
        run = self._run
        run.sleep(run.draws.uniform(*_READ_SECONDS))
        fault = None
        if self.is_struck:
            fault = self._faults.get(self._count)
            self._count += 1
        if fault is None:
            read_into(reader, offset, target)
            return
        self._reached[f"read: {fault.kind}"] += 1
        if fault.kind == "late":
            run.sleep(fault.seconds)
            read_into(reader, offset, target)
        elif fault.kind == "wrong":
            read_into(reader, offset, target)
            target[len(target) // 2] ^= 1
        else:
            what = "I/O error" if fault.kind == "error" else "the file ends short"
            raise ReadError(f"{reader.name}: {what} at {offset}")


class _Faults(logging.Handler):
    """Keeps what is logged with a traceback: those are faults of ours."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            lines = "".join(traceback.format_exception(*record.exc_info)[-4:])
            self.lines.append(f"{record.getMessage()}: {lines}")


def play(plan: Plan, repository: Path) -> Outcome:
    """Return what becomes of ``plan`` with the packs in ``repository``; once in a process."""
    run = Simulation(plan.seed, plan.choices)
    begin(run)
    gc.disable()
    outcome = Outcome()
    faults = _Faults()
    root = logging.getLogger()
    root.addHandler(faults)
    logging.raiseExceptions = False
    world = _World(plan, repository, run, outcome)
    world.install()
    started_at = time.process_time()
    try:
        run.check = world.check
        run.run(Thread(target=world.main, name="loop"))
        if run.threads:
            names = ", ".join(thread.name for thread in run.threads)
            raise BrokenError(f"threads are left: {names}")
        if faults.lines:
            raise BrokenError(f"logged: {faults.lines[0]}")
    except BrokenError as exc:
        outcome.broken = str(exc)
    except BaseException as exc:  # noqa: BLE001  an error of a thread is what a run looks for
        outcome.broken = "".join(traceback.format_exception(exc)[-6:])
    root.removeHandler(faults)
    outcome.cpu_seconds = time.process_time() - started_at
    outcome.switches, outcome.seconds = run.switches.total(), run.now - START
    outcome.choices = run.choices.drawn
    outcome.trace = run.trace()
    return outcome


class _World:
    def __init__(self, plan: Plan, repository: Path, run: Simulation, outcome: Outcome) -> None:
        self._plan, self._repository = plan, repository
        self._run, self._outcome = run, outcome
        self._disk = Disk(run, plan.faults, outcome.reached)
        self._budget: Any = None
        self._service: Any = None
        self._registry: Any = None
        self._create: Any = None
        self._inputs: dict[str, tuple[bytes, np.ndarray[Any, Any]]] = {}
        #: Models that a client loaded or unloaded.
        self._unsure: set[str] = set()
        #: Errors of callbacks of the event loop.
        self._errors: list[str] = []

    # Disk and kernels

    def install(self) -> None:
        """Have reads and kernels of this process take their time from the simulation."""
        from loader.pool import pool
        from loader.readers.files import ReplaceableReader
        from pipeline.devices import cpu

        disk, run = self._disk, self._run
        read_into = ReplaceableReader.read_into

        def read(reader: Any, offset: int, target: memoryview) -> None:
            disk.read(reader, read_into, offset, target)

        _replace(ReplaceableReader, "read_into", read)
        _replace(pool, "find_reader", lambda: None)
        compute = cpu._Bound.__call__

        def launch(bound: Any) -> None:
            run.sleep(run.draws.uniform(*_KERNEL_SECONDS))
            compute(bound)

        _replace(cpu._Bound, "__call__", launch)

    def check(self) -> None:
        """Raises BrokenError: more is reserved than the budget has, or a callback failed."""
        if self._errors:
            raise BrokenError(f"in the event loop: {self._errors[0]}")
        budget = self._budget
        if budget is not None and budget.used_bytes > budget.total_bytes:
            raise BrokenError(f"{budget.used_bytes} bytes of {budget.total_bytes} are reserved")

    # The thread of the event loop

    def main(self) -> None:
        """Serve, and let clients come."""
        loop = Loop()
        asyncio.set_event_loop(loop)
        loop.set_exception_handler(lambda _, context: self._errors.append(_described(context)))
        try:
            loop.run_until_complete(self._serve())
            loop.end_threads()
        finally:
            asyncio.set_event_loop(None)

    async def _serve(self) -> None:
        from uvicorn.server import ServerState

        from server.app import create_app
        from server.protocol.infer import InferReception
        from server.service import Service, connection_limits
        from server.settings.settings import Settings
        from server.transport.connection import Connection
        from server.transport.intake import Intake
        from server.transport.registry import Registry
        from server.transport.server import admit_newcomers

        plan = self._plan
        settings = Settings.model_validate(
            {
                "repository": str(self._repository),
                "budget": plan.budget,
                "request_memory": 1 << 20,
                "budget_policy": plan.policy,
                "queue_limit": plan.queue_limit,
                "model_control": "explicit",
                "allow_admin": True,
                "threads": 1,
                "memory_pressure": "off",  # a real one is not the seed's
            }
        )
        async with Service(settings, owns_process=True) as service:
            self._service, self._budget = service, service.budget
            app = create_app(service)
            await service.loaded()
            self._read_inputs()
            registry = self._registry = Registry(
                connection_limits(settings, plan.connections, 4 * plan.connections)
            )
            service.metrics.connections = registry
            state = ServerState()
            intake = Intake(InferReception(service), asyncio.get_running_loop())
            self._create = lambda arrival: Connection(app, state, registry, intake, arrival=arrival)
            tasks = [
                asyncio.create_task(admit_newcomers(registry)),
                asyncio.create_task(_dropping_silent(registry)),
            ]
            self._disk.is_struck = True
            await self._play()
            self._disk.is_struck = False
            await asyncio.sleep(_CALM_SECONDS)
            await self._settled()
            service.drain()
            registry.drain()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if state.tasks:
                raise BrokenError(f"{len(state.tasks)} requests are still answered")
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        if left:
            raise BrokenError(f"tasks are left: {left[0]!r}")

    def _read_inputs(self) -> None:
        for model in MODELS:
            with np.load(self._repository.parent / f"{model}.npz") as arrays:
                values, expected = arrays["x"], arrays["y"]
            tensor = {"name": "x", "datatype": "FP32", "shape": list(values.shape)}
            text = json.dumps([{**tensor, "data": values.ravel().tolist()}])
            self._inputs[model] = text.encode(), expected.ravel()

    async def _play(self) -> None:
        clients = {
            asyncio.create_task(self._do(operation)): operation
            for operation in self._plan.operations
        }
        done, waiting = await asyncio.wait(
            clients, timeout=_WAIT_SECONDS, return_when=asyncio.FIRST_EXCEPTION
        )
        for client in done:
            client.result()
        if waiting:
            raise BrokenError(f"no answer after ten minutes: {clients[waiting.pop()]}")

    async def _do(self, operation: Operation) -> None:
        await asyncio.sleep(operation.start)
        match operation.kind:
            case "infer":
                await self._infer(operation)
            case "look":
                await self._ask(operation, b"GET", b"/metrics", {200, 503})
            case _:
                await self._change(operation)

    # Clients

    async def _infer(self, operation: Operation) -> None:
        loop = asyncio.get_running_loop()
        client = Client(self._registry, self._create, f"10.0.0.{operation.address}")
        inputs, _ = self._inputs[operation.model]
        micros = round(operation.timeout * 1e6)
        body = b'{"parameters":{"timeout":%d},"inputs":%s}' % (micros, inputs)
        path = f"/v2/models/{operation.model}/infer".encode()
        data = _request(b"POST", path, body) * operation.count
        leaving = asyncio.create_task(self._leave(client, operation.leaves))
        started_at = loop.time()
        while data and not client.wire.is_closed:
            client.send(data[: operation.piece])
            data = data[operation.piece :]
            if data:
                await asyncio.sleep(operation.pause)
        sent = loop.time()
        for _ in range(operation.count):
            answer = await client.answer()
            if answer is None:
                break
            started_at = started_at if client.read_at is None else client.read_at
            self._judge(operation, answer, loop.time() - started_at, sent - started_at)
        else:
            answer = 0, b""
        leaving.cancel()
        if answer is None and operation.leaves is None and operation.count == 1:
            raise BrokenError(f"no answer: {operation}")
        client.leave()

    @property
    def _may_be_absent(self) -> bool:
        changes = any(operation.kind in ("load", "unload") for operation in self._plan.operations)
        return changes or self._plan.budget < ALL_FIT

    async def _leave(self, client: Client, seconds: float | None) -> None:
        if seconds is not None:
            await asyncio.sleep(seconds)
            client.leave()

    def _judge(
        self, operation: Operation, answer: tuple[int, bytes], took: float, sending: float
    ) -> None:
        status, body = answer
        self._outcome.reached[f"status {status}"] += 1
        late = took - max(operation.timeout, sending)
        if operation.count == 1 and late > (
            _KERNEL_SECONDS[1] if status == 200 else _REFUSAL_SECONDS
        ):
            raise BrokenError(
                f"status {status} came {late:.6f} s late: {body[:200]!r}: {operation}"
            )
        is_slow = sending > 0.4 or operation.pause > 0.1
        allowed = _STATUSES | (_ABSENT_STATUSES if self._may_be_absent else set())
        if status not in (allowed | {408} if is_slow else allowed):
            raise BrokenError(f"status {status}: {body[:300]!r}: {operation}")
        if status == 200:
            _, expected = self._inputs[operation.model]
            values = np.array(json.loads(body)["outputs"][0]["data"], np.float32)
            if not np.array_equal(values, expected):
                max_error = np.abs(values - expected).max()
                raise BrokenError(f"a wrong answer, {max_error} off: {operation}")
        elif b'"code"' not in body:
            raise BrokenError(f"an error without a code: {body[:300]!r}")

    async def _change(self, operation: Operation) -> None:
        path = f"/v2/repository/models/{operation.model}/{operation.kind}".encode()
        self._unsure.add(operation.model)
        await self._ask(operation, b"POST", path, _STATUSES | _ABSENT_STATUSES)

    async def _ask(
        self, operation: Operation, method: bytes, path: bytes, statuses: set[int]
    ) -> None:
        client = Client(self._registry, self._create, f"10.0.0.{operation.address}")
        client.send(_request(method, path, b"{}" if method == b"POST" else b""))
        answer = await client.answer()
        if answer is None:
            raise BrokenError(f"no answer: {operation}")
        self._outcome.reached[f"{operation.kind} {answer[0]}"] += 1
        if answer[0] not in statuses:
            raise BrokenError(f"status {answer[0]}: {answer[1][:300]!r}: {operation}")
        client.leave()

    # When all has come to rest

    async def _settled(self) -> None:
        service = self._service
        left = {
            "bytes of request memory": service.request_memory.used_bytes,
            "requests that wait for memory": service.request_memory.waiting,
            "exchanges": len(service.exchanges),
            "connections": len(self._registry),
            "newcomers": len(self._registry.queue),
        }
        for entry in service.repository.entries():
            left[f"uses of {entry.name}"] = len(entry.uses)
            if entry.worker is not None:
                left[f"requests in line of {entry.name}"] = len(entry.worker.line)
        if any(left.values()):
            raise BrokenError(", ".join(f"{n} {what}" for what, n in left.items() if n))
        for entry in service.repository.entries():
            if (
                entry.name not in self._unsure
                and not entry.answers
                and self._plan.budget >= ALL_FIT
            ):
                raise BrokenError(f"{entry.name} does not serve: {entry.message}")
            if entry.serves:
                await self._infer(Operation(0.0, "infer", entry.name))
                self._outcome.reached["answers at the end"] += 1


def _replace(owner: Any, name: str, value: object) -> None:
    setattr(owner, name, value)


async def _dropping_silent(registry: Any) -> None:
    while True:
        await asyncio.sleep(0.25)
        registry.sweep(asyncio.get_running_loop().time())


def _request(method: bytes, path: bytes, body: bytes) -> bytes:
    head = b"%s %s HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n" % (
        method,
        path,
    )
    return b"%scontent-length: %d\r\n\r\n%s" % (head, len(body), body)


def _described(context: dict[str, Any]) -> str:
    error = context.get("exception")
    trace = "".join(traceback.format_exception(error)[-4:]) if error is not None else ""
    return f"{context.get('message')} {trace}"
