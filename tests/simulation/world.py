"""One process of a run: the real service on simulated threads, disk and network, and what must hold.

Always true:

- What the budget's books hold, and what memory is open, is at most the budget; requests hold theirs.
- Each request of a client that stays has one answer, by its deadline and what one kernel takes; refusals
  come 20 ms after their requests, which may be later, and no sooner after the answer before. While the
  event loop itself computes, nothing is due.
- An answer is the network's, bit by bit, or an error that the table of errors has. None comes from an older
  version than one that a client has loaded.
- No request has to wait for its deadline, seconds away, while nothing is read, computed or planned.
- Where nothing fails and nothing changes, no request is refused that has seconds, next to no others, and
  room for them.
- The inputs of a kernel stay the same while it runs, and nothing uses weights that another read replaces.
- The event loop waits for no lock that a thread has while it reads or computes.
- No thread and no callback of the loop fails, and nothing is logged as a fault of ours. No object waits
  twice for the time of one call, and there are no more tasks than connections need. No planning goes on
  under the next change of models.
- When faults have ended and time has passed, each model that fits is served, or can be loaded, and answers.
- After the end no request holds memory; no task, thread, memory, open file and hidden file is left.
"""

import asyncio
import functools
import gc
import logging
import os
import time
import traceback
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import numpy as np

from tests.simulation.clients import Answers, Clients
from tests.simulation.drawing import ALL_FIT, all_fit
from tests.simulation.faults import Logged, Machine
from tests.simulation.files import VARIANTS, FakeCompiler, Files
from tests.simulation.loop import Loop
from tests.simulation.network import Client
from tests.simulation.outcome import Outcome
from tests.simulation.plan import MODELS, Operation, Plan
from tests.simulation.simulator import START, BrokenError, Simulation, begin
from tests.simulation.states import note_reached
from tests.simulation.threads import Thread

#: All that failed has been tried again by then.
_CALM_SECONDS = 70.0
_WAIT_SECONDS = 600.0
#: What is left of a connection or a request after its service has ended.
_END_SECONDS = 40.0
#: The loop's timers and tasks are counted every so many of its iterations.
_COUNT_INTERVAL = 16
#: What all runs have set.
_FIXED = {
    "repository": ".",
    "allow_admin": True,
    "threads": 1,
    "poll_interval": 1.0,
    "memory_pressure": "off",  # a real one is not the seed's
}


class _CrashError(BaseException):
    """The process ends here."""


def play(plan: Plan, life: int, folder: Path, packs: Path) -> Outcome:
    """Return what becomes of one ``life`` of ``plan``, with the repository ``folder``; once in a process.

    ``packs``: of all variants of the models.
    """
    seed = plan.seed + 7919 * life
    run = Simulation(seed, None if plan.choices is None else (*plan.choices, {})[life])
    begin(run)
    gc.disable()
    outcome = Outcome()
    note_reached(outcome.reached)
    logged = Logged()
    root = logging.getLogger()
    root.addHandler(logged)
    logging.raiseExceptions = False
    started_at = time.process_time()
    world = _World(plan, life, Files(folder, packs), packs, run, outcome)
    world.install()
    try:
        run.check = world.check
        run.run(Thread(target=world.main, name="loop"))
        world.check_end()
        if logged.lines:
            raise BrokenError(f"logged: {logged.lines[0]}")
    except _CrashError:
        outcome.reached["crashed"] += 1
    except BrokenError as exc:
        outcome.broken = str(exc)
    except BaseException as exc:  # noqa: BLE001  an error of a thread is what a run looks for
        outcome.broken = "".join(traceback.format_exception(exc)[-6:])
    root.removeHandler(logged)
    outcome.cpu_seconds = time.process_time() - started_at
    outcome.switches, outcome.seconds = run.switches, run.now - START
    outcome.choices = (run.choices.drawn,)
    outcome.trace = run.trace()
    return outcome


class _World:
    def __init__(
        self,
        plan: Plan,
        life: int,
        files: Files,
        packs: Path,
        run: Simulation,
        outcome: Outcome,
    ) -> None:
        self._plan, self._operations = plan, plan.processes[life]
        self._files = files
        self._run, self._outcome = run, outcome
        faults = plan.faults if life == 0 else ()
        self._machine = Machine(run, faults, outcome.reached)
        self._expected_answers = _expected_answers(packs)
        self._clients = Clients(
            plan,
            files,
            self._expected_answers,
            outcome.reached,
            self._connect,
            self._machine,
        )
        self._loop: Loop | None = None
        self._service: Any = None
        self._registry: Any = None
        self._state: Any = None
        self._create: Any = None
        #: Errors of callbacks of the event loop.
        self._errors: list[str] = []
        self._plannings = self._next_count = 0
        # The part of plannings that take seconds, and do not look whether they are wanted.
        self._slow_plannings = run.draws.choice((0.0, 0.0, 0.0, 0.3))
        self._end: asyncio.Event | None = None
        self._descriptors = 0

        #: Whether files are read before a change is requested: that takes no memory of models.
        self._verifies = ContextVar("verifies", default=False)

    def install(self) -> None:
        """Have what the service calls of the system be the simulation's, and watch some of its calls."""
        from models import whole_files
        from server.repository import apart
        from server.repository.applying import Applier
        from server.repository.planning_threads import PlanningThreads
        from server.transport import connection

        self._machine.install()
        run, put, files = PlanningThreads.run, whole_files._put, self._files
        verified = Applier.verified

        async def watched(planning: Any, work: Callable[[], Any]) -> Any:
            return await run(planning, lambda: self._planned(planning, work))

        async def verifying(*arguments: Any) -> Any:
            token = self._verifies.set(True)
            try:
                return await verified(*arguments)
            finally:
                self._verifies.reset(token)

        def noted(partial: Path, path: Path) -> None:
            files.note_replaced(path)
            put(partial, path)

        setattr(apart, "APART_BYTES", 1 << 62)  # noqa: B010  no process searches: it is not simulated
        setattr(connection, "has_unread", lambda transport: transport.has_unread)  # noqa: B010
        setattr(PlanningThreads, "run", watched)  # noqa: B010  mypy knows that it is a method
        setattr(Applier, "verified", verifying)  # noqa: B010
        setattr(whole_files, "_put", noted)  # noqa: B010

    def _planned(self, planning: Any, work: Callable[[], Any]) -> Any:
        counts = not self._verifies.get()
        self._plannings += counts
        try:
            draws = self._run.draws
            is_slow = draws.random() < self._slow_plannings
            with self._machine.works():
                self._run.sleep(draws.uniform(0, 3.0 if is_slow else 2e-3))
                return work()
        finally:
            self._plannings -= counts

    def check(self) -> None:
        """Raises BrokenError: more is reserved than there is, or a callback failed."""
        if self._errors:
            raise BrokenError(f"in the event loop: {self._errors[0]}")
        service = self._service
        if service is None:
            return
        budget, memory = service.budget, service.request_memory
        if budget.used_bytes > budget.total_bytes:
            raise BrokenError(f"{budget.used_bytes} bytes of {budget.total_bytes} are reserved")
        if memory.used_bytes > memory.capacity_bytes or memory.used_bytes < 0:
            raise BrokenError(f"requests hold {memory.used_bytes} of {memory.capacity_bytes} bytes")
        live = self._machine.live_bytes
        if live > budget.total_bytes:
            raise BrokenError(f"{live} bytes are open of {budget.total_bytes}")
        loop = self._loop
        if loop is not None and loop.iterations >= self._next_count:
            self._next_count = loop.iterations + _COUNT_INTERVAL
            self._check_loop(loop)

    def _check_loop(self, loop: Loop) -> None:
        for (_, name), count in loop.timers().items():
            if count > 1:
                raise BrokenError(f"{count} timers for one {name}")
        clients = len(self._registry) + len(self._registry.queue) if self._registry else 0
        max_tasks = 60 + 5 * (clients + len(self._operations))
        if len(asyncio.all_tasks(loop)) > max_tasks:
            raise BrokenError(f"{len(asyncio.all_tasks(loop))} tasks of {clients} connections")

    def check_end(self) -> None:
        """Raises BrokenError: threads, memory or files are left."""
        if self._run.threads:
            names = ", ".join(thread.name for thread in self._run.threads)
            raise BrokenError(f"threads are left: {names}")
        is_lost = any(fault.kind == "late" and fault.seconds > 10 for fault in self._plan.faults)
        if self._machine.live and not is_lost:
            raise BrokenError(f"{self._machine.live_bytes} bytes are left")
        if leftovers := self._files.leftovers():
            raise BrokenError(f"files are left: {leftovers}")
        descriptors = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
        if descriptors > self._descriptors and not is_lost:
            raise BrokenError(f"{descriptors - self._descriptors} files are open")

    # The thread of the event loop

    def main(self) -> None:
        """Serve, and let clients come."""
        loop = self._loop = Loop()
        asyncio.set_event_loop(loop)
        loop.set_exception_handler(lambda _, context: self._errors.append(_described(context)))
        self._descriptors = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
        try:
            loop.run_until_complete(self._live())
            loop.end_threads()
        finally:
            asyncio.set_event_loop(None)

    async def _live(self) -> None:
        from server.operation.starting import StartupError

        try:
            await self._serve()
        except StartupError:
            if not self._files.spoiled:
                raise
            self._outcome.reached["no model could be loaded"] += 1
            self._files.heal()
            await self._serve()
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        if left:
            raise BrokenError(f"tasks are left: {left[0]!r}")

    async def _serve(self) -> None:
        from uvicorn.server import ServerState

        from server.app import create_app
        from server.protocol.infer import InferReception
        from server.repository.uploads import Uploads
        from server.service import Service, connection_limits
        from server.settings.settings import Settings
        from server.transport.connection import Connection
        from server.transport.intake import Intake
        from server.transport.registry import Registry

        plan, connections = self._plan, self._plan.connections
        settings = Settings.model_validate(
            {**_FIXED, "repository": str(self._files.folder), **plan.settings}
        )
        async with Service(settings, owns_process=True) as service:
            self._service = service
            self._watch_changes(service.repository)
            compiler: Any = FakeCompiler(self._files, self._run.draws)
            service.uploads = Uploads(service.repository, compiler)
            app = create_app(service)
            registry = self._registry = Registry(
                connection_limits(settings, connections, 4 * connections)
            )
            service.metrics.connections = registry
            state = self._state = ServerState()
            intake = Intake(InferReception(service), asyncio.get_running_loop())
            self._create = lambda arrival: Connection(app, state, registry, intake, arrival=arrival)
            await service.loaded()
            await self._answer(service)

    async def _answer(self, service: Any) -> None:
        """Let clients come, and end."""
        from server.transport.server import admit_newcomers

        registry, state = self._registry, self._state
        tasks = [
            asyncio.create_task(admit_newcomers(registry)),
            asyncio.create_task(_dropping_silent(registry)),
        ]
        self._end = asyncio.Event()
        self._machine.calls.is_struck = True
        playing = asyncio.create_task(self._play())
        ending = asyncio.create_task(self._end.wait())
        await asyncio.wait({playing, ending}, return_when=asyncio.FIRST_COMPLETED)
        self._machine.calls.is_struck = False
        if not self._end.is_set():
            await playing
            ending.cancel()
            self._clients.unsure |= (
                self._files.spoiled
            )  # a new version comes, which is to be loaded
            self._files.heal()
            await asyncio.sleep(_CALM_SECONDS)
            await self._settled()
        self._clients.is_ending = True
        service.drain()
        registry.drain()
        for connection in list(state.connections):
            connection.shutdown()
        await self._finish(playing)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if state.tasks:
            raise BrokenError(f"{len(state.tasks)} requests are still answered")

    async def _finish(self, playing: "asyncio.Task[None]") -> None:
        """Wait until requests in flight are answered."""
        done, _ = await asyncio.wait({playing}, timeout=_END_SECONDS)
        if not done:
            raise BrokenError("requests in flight do not end")
        playing.result()
        tasks = self._state.tasks  # of clients that have left, too
        if tasks:
            await asyncio.wait(tasks, timeout=_END_SECONDS)

    def _watch_changes(self, repository: Any) -> None:
        """Check that nothing is planned for another change where one begins."""
        reconciler, planning = repository._reconciler, repository._planning
        take = reconciler._take

        async def checked(change: Any) -> Any:
            if self._plannings and not planning.is_closed:
                raise BrokenError(f"{self._plannings} plannings go on under {change}")
            return await take(change)

        reconciler._take = checked

    # Operations

    def _connect(self, operation: Operation) -> Client:
        address = f"10.0.0.{operation.address}"
        return Client(self._registry, self._create, address, operation.read_delay)

    async def _play(self) -> None:
        clients = {
            asyncio.create_task(self._do(operation)): operation for operation in self._operations
        }
        waiting: set[asyncio.Task[None]] = set(clients)
        end = asyncio.get_running_loop().time() + _WAIT_SECONDS
        assert self._end is not None
        while waiting:
            left = end - asyncio.get_running_loop().time()
            done, waiting = await asyncio.wait(
                waiting, timeout=max(left, 0.0), return_when=asyncio.FIRST_EXCEPTION
            )
            for client in done:
                client.result()
            if waiting and left <= 0:
                raise BrokenError(f"no answer after ten minutes: {clients[waiting.pop()]}")

    async def _do(self, operation: Operation) -> None:
        await asyncio.sleep(operation.start)
        assert self._end is not None
        if self._end.is_set():
            return
        match operation.kind:
            case "infer":
                await self._clients.infer(operation)
            case "look":
                await self._clients.ask(operation, b"GET", b"/metrics")
            case "stop":
                self._clients.is_ending = True
                self._outcome.reached["stopped"] += 1
                self._end.set()
            case "crash":
                self._run.check = self._crash
            case "publish" | "remove" | "damage":
                self._change_files(operation)
            case _:
                await self._clients.change(operation)

    def _crash(self) -> None:
        self._files.crash(self._run.draws)
        raise _CrashError

    def _change_files(self, operation: Operation) -> None:
        model, files = operation.model, self._files
        self._outcome.reached[f"files: {operation.kind}"] += 1
        if operation.kind == "publish":
            files.publish(model)
        elif operation.kind == "damage":
            files.damage(model)
        else:
            files.remove(model)
            self._clients.removed(model)

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
        reserved = set(service.budget.held())
        keys = {item.key for item in service.repository.instances()}
        if reserved != keys:
            raise BrokenError(f"the budget holds {reserved}, instances are {keys}")
        for model in MODELS:
            await self._check_served(model)

    async def _check_served(self, model: str) -> None:
        """Check that ``model`` is served, or can be loaded where it fits, and that it answers."""
        entries = self._service.repository.models.of(model)
        if any(entry.is_lost for entry in entries):
            self._outcome.reached["memory is lost"] += 1
            return
        is_loaded = any(entry.answers for entry in entries)
        fits = all_fit(self._plan)
        if not is_loaded and model not in self._clients.unsure and fits and entries:
            raise BrokenError(f"{model} does not serve: {[entry.message for entry in entries]}")
        if fits and not is_loaded:
            path = f"/v2/repository/models/{model}/load".encode()
            answer = await self._clients.ask(Operation(0.0, "load", model), b"POST", path, b"{}")
            if answer is None or answer[0] != 200:
                raise BrokenError(f"{model} cannot be loaded at the end: {answer}")
            is_loaded = True
        if is_loaded:
            await self._clients.infer(Operation(0.0, "infer", model))
            self._outcome.reached["answers at the end"] += 1


def warm_up(packs: Path) -> None:
    """Have what all runs compute at their first use be there: schemas of settings and of packs, answers."""
    from models.packs.pack import read_pack
    from server.settings.settings import Settings

    Settings.model_validate({**_FIXED, "budget": ALL_FIT})
    read_pack(packs / VARIANTS[0] / MODELS[0] / "1")
    _expected_answers(packs)


@functools.cache
def _expected_answers(packs: Path) -> Answers:
    answers: Answers = {}
    for variant in VARIANTS:
        for model in MODELS:
            with np.load(packs / variant / f"{model}.npz") as arrays:
                answers[model, variant] = arrays["x"], arrays["y"].ravel()
    return answers


async def _dropping_silent(registry: Any) -> None:
    while True:
        await asyncio.sleep(0.25)
        registry.sweep(asyncio.get_running_loop().time())


def _described(context: dict[str, Any]) -> str:
    error = context.get("exception")
    trace = "".join(traceback.format_exception(error)[-4:]) if error is not None else ""
    return f"{context.get('message')} {trace}"
