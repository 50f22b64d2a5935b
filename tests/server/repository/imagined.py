"""A service's models without packs, kernels, disks or threads: the repository itself is the real one.

Packs are folders in memory (imagined_folder.py), whose files are looked at and hold nothing; what is in
them is noted here. Engines are what they hold of the budget. Anything that may fail fails where a test has
set so.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from loader.errors import ReadError
from loader.pool.pool import ReadPool
from models.errors import PackError
from pipeline.budget.budget import Budget
from pipeline.budget.holdings import Allocations, Holding
from pipeline.budget.request_needs import Need
from pipeline.budget.sharing import Sharer
from pipeline.devices.base import KernelError
from pipeline.execution.errors import DeadlineError, DrainError
from pipeline.execution.shielded import run_to_completion
from pipeline.fitting.wanted import EnginePlanResult
from pipeline.planning.found_plans import FoundPlans
from pipeline.planning.plan import PlanError
from server.errors import NotServingError
from server.faults import Code, Fault
from server.repository.environment import DevicePack, RepositoryEnvironment
from server.repository.repository import Repository
from server.repository.served_engine import Running, ServedEngine
from server.settings.settings import Settings
from tests.server.repository.imagined_folder import ImaginedFolder

REQUEST_BYTES = 64
#: What may be set to fail, and with what.
MAY_FAIL: Mapping[str, tuple[Callable[[], Exception], ...]] = {
    "prepare": (lambda: PackError("no pack"), OSError),
    "plan": (lambda: PlanError("no plan"),),
    "open": (
        lambda: ReadError("a bad block"),
        MemoryError,
        lambda: KernelError("no kernel"),
        lambda: DrainError("a read did not end"),
    ),
    "close": (lambda: KernelError("a kernel runs"),),
}


@dataclass(frozen=True)
class Contents:
    """What a version is: bytes of its smallest plan and of its largest, of each arena, of a request."""

    least: int
    full: int
    arena: int
    need: int = 8
    whole: bool = True


@dataclass(frozen=True)
class ImaginedPlan:
    """Of weights ``resident`` bytes stay."""

    resident: int
    arena: int
    architecture: str = "imagined"

    @property
    def choice(self) -> Any:
        return SimpleNamespace(resident=self.resident, lanes=1)

    @property
    def memory(self) -> dict[str, int]:
        return {"resident": self.resident, "arena": self.arena}

    @property
    def total_bytes(self) -> int:
        return self.resident + self.arena

    @property
    def arena_bytes(self) -> int:
        return self.arena


def sharer_of(world: "World", name: str, contents: Contents) -> Sharer:
    """Return a model of such ``contents`` as one of a set."""

    def within(n_bytes: int) -> EnginePlanResult:
        world.may_fail("plan")
        weights = min(max(n_bytes - contents.arena, contents.least), contents.full)
        return EnginePlanResult(ImaginedPlan(weights, contents.arena))  # type: ignore[arg-type]

    def at_once(n_bytes: int) -> EnginePlanResult:
        found = within(n_bytes).plan
        rough = max(contents.least, found.memory["resident"] * 3 // 4)
        return EnginePlanResult(ImaginedPlan(rough, contents.arena), heuristic=True)  # type: ignore[arg-type]

    least = {"resident": contents.least, "arena": contents.arena}
    return Sharer(name, least, within, at_once)


class Engine:
    """Holds what it is planned to."""

    callers = 1
    lost_device = is_asleep = False
    reads_nothing = False

    def __init__(self, world: "World", program: Any, plan: ImaginedPlan, in_turns: bool) -> None:
        self._world, self.program, self.plan = world, program, plan
        self.takes_turns = in_turns
        self.broken = ""
        self._refuses: Exception | None = None
        world.open[self] = Holding(plan.memory, in_turns)
        world.check_memory()

    def close(self) -> None:
        """Give it back, if nothing is in the way: else it is held for ever."""
        if self in self._world.open:
            held = self._world.open.pop(self)
            try:
                self._world.may_fail("close")
            except KernelError as exc:
                self._world.kept.append(held)
                if self._world.drawn.random() < 0.5:
                    self.broken = str(exc)
                else:
                    self._refuses = exc
        if self._refuses is not None:
            raise self._refuses


class Threadless:
    """A worker on the loop: sweeps and reopenings one after the other."""

    def __init__(self, world: "World", running: Running) -> None:
        self._world = world
        self.served = ServedEngine(running)
        self.abandoned = self.closing = self.hangs = False
        self._turn = asyncio.Lock()
        self._accepted: set[asyncio.Future[None]] = set()
        self._given_up: asyncio.Future[None] = world.loop.create_future()
        self._hung: asyncio.Future[None] | None = None

    @property
    def engine(self) -> Any:
        return self.served.engine

    @property
    def fault(self) -> Fault | None:
        return self.served.fault

    def stuck(self, factor: float, least_seconds: float) -> bool:
        return self._hung is not None

    async def compute(self, turns: int) -> None:
        """Answer a request in so many turns; never, where it ``hangs``."""
        if self.closing:
            raise ClosedToRequestsError(f"{self.served.name} is closing")
        late, doing = (
            self._world.late,
            asyncio.ensure_future(self._with_turn(self._computed(turns))),
        )
        self._accepted.add(doing)
        doing.add_done_callback(self._accepted.discard)
        doing.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.wait({doing, late}, return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise DeadlineError("no answer in time")
        doing.result()

    async def _computed(self, turns: int) -> None:
        if self.fault:
            raise self.served.out_of_service()
        assert self.engine in self._world.open, "a request met a closed engine"
        if self.hangs:
            self._hung = self._world.loop.create_future()
            self._world.hung.append(self._hung)
            try:
                await self._hung
            finally:
                self._hung = None
            return
        for _ in range(turns):
            await asyncio.sleep(0)
            assert self.engine in self._world.open, "a request lost its engine"

    async def _with_turn(self, work: Any) -> None:
        """Do ``work`` in its turn, unless this is given up meanwhile; then it goes on by itself."""

        async def in_turn() -> None:
            async with self._turn:
                await work

        doing = asyncio.ensure_future(in_turn())
        self._accepted.add(doing)
        doing.add_done_callback(self._accepted.discard)
        doing.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.wait({doing, self._given_up}, return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise self.served.out_of_service()
        doing.result()

    async def reopen(self, make: Callable[[], Running], back: Callable[[], Running]) -> None:
        if self.closing or self.abandoned:
            raise NotServingError("closing")
        await run_to_completion(self._with_turn(asyncio.to_thread(self.served.reopen, make, back)))

    def abandon(self, why: str) -> None:
        self.abandoned = self.closing = True
        self.served.leave(Fault(Code.ENGINE_FAILED, why))
        if not self._given_up.done():
            self._given_up.set_result(None)

    async def close(self) -> None:
        self.closing = True
        while self._accepted and not self.abandoned:
            waited = {*self._accepted, self._given_up}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if not self.abandoned:
            await asyncio.to_thread(self.engine.close)

    def wait(self) -> None:
        self.engine.close()


class ClosedToRequestsError(Exception):
    """A request came to a model that goes, though it had found it before."""


@dataclass
class World:
    """All that is beside the repository: its folder, packs, engines, and what fails next."""

    root: ImaginedFolder
    drawn: random.Random
    settings: Settings
    loop: Any = None
    packs: dict[str, Contents] = field(default_factory=dict)
    failing: dict[str, list[Exception]] = field(default_factory=dict)
    #: Engines that are open, and what those hold that can never be closed.
    open: dict[Engine, Holding] = field(default_factory=dict)
    kept: list[Holding] = field(default_factory=list)
    hung: list[Any] = field(default_factory=list)
    left: list[Callable[[], None]] = field(default_factory=list)
    written: int = 0
    #: All that were ever there.
    names: set[str] = field(default_factory=set)
    #: What has failed.
    failed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        assert self.settings.budget is not None
        self.budget = Budget(self.settings.budget)
        self.repository: Repository
        self._books = self.budget._held
        self._late: asyncio.Future[None] | None = None

    def write(self, name: str, version: int, contents: Contents) -> None:
        """Put a version into the repository, or another in its place."""
        self.written += 1
        self.names.add(name)
        folder = self.root / name / str(version)
        folder.mkdir()
        self.packs[str(self.written)] = contents
        for file in ("weights.bin", "manifest.json"):
            (folder / file).write_text(str(self.written))

    def vanish(self, name: str) -> None:
        (self.root / name).remove()

    def versions(self, name: str) -> list[int]:
        folder = self.root / name
        if not folder.exists():
            return []
        return sorted(int(each.name) for each in folder.iterdir() if each.is_dir())

    def contents(self, folder: Path) -> Contents:
        """Return what is in the pack ``folder``; raises as open_pack."""
        try:
            return self.packs[(folder / "manifest.json").read_text()]
        except OSError as exc:
            raise PackError(f"{folder}: no pack in it") from exc

    def fail(self, what: str, exc: Exception) -> None:
        self.failing.setdefault(what, []).append(exc)

    def may_fail(self, what: str) -> None:
        if self.failing.get(what):
            self.failed.append(what)
            raise self.failing[what].pop(0)

    def look(self) -> None:
        """Check the books, whenever they are others."""
        if self.budget._held is not self._books:
            self._books = self.budget._held
            assert self.budget.used_bytes <= self.budget.total_bytes

    def check_memory(self) -> None:
        """What is really held is within the budget, whatever its books say."""
        held = {str(number): each for number, each in enumerate([*self.open.values(), *self.kept])}
        models = self.budget.total_bytes - self.budget.request_bytes
        n_bytes = Allocations(held).n_bytes
        assert n_bytes <= models, f"{n_bytes} bytes of {models} are held"

    def pack(self, folder: Path) -> Any:
        """Return the pack in ``folder``; raises as open_pack."""
        contents = self.contents(folder)
        manifest = SimpleNamespace(
            weight_bytes=contents.full,
            resident_pieces=(),
            inputs=(),
            outputs=(),
            preprocess=None,
            text=None,
            sound=None,
            embedding=None,
        )
        return SimpleNamespace(
            folder=folder,
            manifest=manifest,
            weights_path=folder / "weights.bin",
            version=folder.name,
            contents=contents,
            others=(),
        )

    @property
    def late(self) -> Any:
        """Done when callers that wait for an answer wait no longer."""
        if self._late is None or self._late.done():
            self._late = self.loop.create_future()
        return self._late

    def time_out(self) -> None:
        self.late.set_result(None)

    def release_hung(self) -> None:
        """Let what hangs come back, and what waits for it on a thread go on."""
        for hung in self.hung:
            if not hung.done():
                hung.set_result(None)
        self.hung.clear()
        left, self.left = self.left, []
        for target in left:
            target()


class _Known:
    is_saved = False

    def save(self) -> bool:
        return True

    def take(self, other: object) -> None: ...


class ImaginedEnvironment(RepositoryEnvironment):
    """Has the repository find ``world`` in place of packs, device, disk and threads."""

    def __init__(self, world: World) -> None:
        super().__init__(world.settings, device(), cast(ReadPool, None))
        self._world = world

    def read_pack(self, folder: Path) -> Any:
        return self._world.pack(folder)

    def check_complete(self, folder: Path) -> None:
        if not self._world.contents(folder).whole:
            raise PackError(f"{folder}: not all of it is there")

    def open_pack(self, folder: Path, level: int) -> DevicePack:
        pack = self._world.pack(folder)
        self._world.may_fail("prepare")
        program: Any = SimpleNamespace(pack=pack, name=folder.parent.name, others=())
        return DevicePack(program, None, cast(FoundPlans, _Known()))

    def profile(self, pack: Any, level: int = logging.WARNING) -> None:
        return None

    def need(self, pack: Any) -> Need:
        return Need(pack.contents.need, 0)

    def budget_request(
        self, name: str, opened: Any, batch_size: int, workers: int, search: Any
    ) -> Sharer:
        return sharer_of(self._world, name, opened.program.pack.contents)

    def open_engine(self, opened: Any, planned: Any, arena: object) -> Running:
        plan, together = planned.plan, arena is not None
        try:
            self._world.may_fail("open")
        except DrainError:
            self._world.kept.append(Holding(plan.memory, together))
            self._world.check_memory()
            raise
        engine: Any = Engine(self._world, opened.program, plan, together)
        reader: Any = SimpleNamespace(check=lambda: None)
        return Running(engine, reader)

    def open_tokenizer(self, pack: Any) -> None:
        return None

    def worker(
        self, running: Running, dispatcher: object, batching: object, tokenizer: object
    ) -> Any:
        return Threadless(self._world, running)

    def start_thread(self, name: str, target: Callable[[], None]) -> None:
        self._world.left.append(target)

    def trim_heap(self) -> None: ...

    def give_back(self, seconds: float) -> None: ...


def device() -> Any:
    """Return what stands for the device."""
    return SimpleNamespace(
        target=None,
        adapt=lambda architecture: architecture,
        reserve=lambda n_bytes: SimpleNamespace(close=lambda: None),
        tune=lambda tuning: None,
        computes_on_caller=True,
        name="imagined",
    )
