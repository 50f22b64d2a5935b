"""Fuzz what the service does with its models: ``python -m tests.fuzz.fleet [seconds] [first]``.

Each example is a sequence of wishes: models are loaded, unloaded, planned again, asked, replaced on disk,
and removed; wishes overlap, are cancelled, and meet failures. Packs, engines, threads and time are imagined
(tests/server/repository/imagined.py), the repository is the real one. When all has come to rest, what it
says must be what is there:

- At every moment what engines hold, and those that can never be closed, is within the budget.
- Every wish has ended, every request that found a model was computed by it.
- A model is ready exactly if its engine is open, with its plan in the budget; any other says why it is not.
- After a wish that failed what served serves, as it was planned, but for what was evicted for it.
- A load that was answered serves what is on disk; a request to a model that was evicted brings it back.
- When nothing fails any more and time passes, no model is away that may come back.

A sequence that fails is written with the fewest steps that make it fail.
"""

import asyncio
import logging
import random
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from models.errors import ModelError
from server.errors import NotFoundError, NotServingError
from server.faults import FAILURES, Code, Fault
from server.operation import watching
from server.repository.instances import State
from server.repository.polling import Poller, follow
from server.repository.repository import Repository
from server.repository.retrying import Retrier
from server.settings.settings import Settings
from tests.fuzz.pack import chosen_run, run_examples
from tests.server.repository.imagined import (
    MAY_FAIL,
    REQUEST_BYTES,
    ClosedToRequestsError,
    Contents,
    ImaginedEnvironment,
    World,
)
from tests.server.repository.imagined_folder import ImaginedFolder
from tests.server.repository.turns import Turns

NAMES = ("a", "b", "c", "d")
_AT_REST = {State.SERVING, State.FAILED, State.STUCK, State.LOST}
AT_ONCE = ("write", "vanish", "fail", "fault", "hang", "release", "cancel")
_ROUNDS = 20


class Step(NamedTuple):
    """What is wished, and after how many turns the next step comes; None: when all has come to rest."""

    wish: str
    name: str = ""
    number: int = 0
    contents: Contents | None = None
    pause: int | None = None


class Plot(NamedTuple):
    """A service in so large a budget, and what is done with it."""

    seed: int
    budget: int
    activations: str
    policy: str
    pinned: bool
    several: bool
    steps: tuple[Step, ...]


def drawn(seed: int) -> Plot:
    """Return the sequence of that number."""
    rng = random.Random(seed)
    steps = [Step("write", name, 0, _contents(rng), 0) for name in NAMES[: rng.randint(2, 4)]]
    steps += [Step("load_all")] if rng.random() < 0.9 else []
    for _ in range(rng.randint(3, 12)):
        step = _step(rng)
        goes_on = rng.random() < 0.4 and step.wish != "fail" and steps[-1].name in NAMES
        steps.append(step._replace(name=steps[-1].name) if goes_on else step)
    return Plot(
        seed,
        REQUEST_BYTES + rng.choice((60, 100, 150, 220, 400)),
        rng.choice(("own", "auto", "shared")),
        rng.choice(("refuse", "evict-lru", "evict-lru")),
        rng.random() < 0.1,
        rng.random() < 0.15,
        tuple(steps),
    )


def _contents(rng: random.Random) -> Contents:
    least = rng.randint(5, 60)
    return Contents(
        least,
        least + rng.choice((0, 20, 80)),
        rng.choice((0, 5, 20, 40)),
        rng.choice((8, 8, 8, 8, 8, 2 * REQUEST_BYTES)),
        rng.random() < 0.9,
    )


# Wishes, and how often each is drawn.
_OFTEN = {
    "load": 6,
    "unload": 3,
    "replan": 3,
    "request": 10,
    "poll": 4,
    "follow": 1,
    "upload": 2,
    "write": 4,
    "vanish": 2,
    "fail": 5,
    "fault": 1,
    "hang": 1,
    "watch": 1,
    "time": 2,
    "release": 1,
    "cancel": 6,
    "idle": 2,
    "press": 2,
    "ease": 1,
}


def _step(rng: random.Random) -> Step:
    wish = rng.choices(list(_OFTEN), list(_OFTEN.values()))[0]
    name = rng.choice(sorted(MAY_FAIL)) if wish == "fail" else rng.choice(NAMES)
    contents = _contents(rng) if wish in {"write", "upload"} else None
    number = rng.randint(0, 60)
    pause = None if rng.random() < 0.5 else rng.randint(0, 40)
    before_another = wish in AT_ONCE[:5]
    return Step(wish, name, number, contents, 0 if before_another else pause)


class Fleet:
    """Runs a ``plot`` in ``world``, and checks what comes of it."""

    def __init__(self, plot: Plot, world: World) -> None:
        self.plot, self.world = plot, world
        self.repository = world.repository = Repository(
            world.settings, world.budget, ImaginedEnvironment(world)
        )
        self.now = 0.0
        self.retrier = Retrier(self.repository, clock=lambda: self.now)
        self.poller: Poller | None = None
        self.seen: set[str] = set()
        self.rested = True
        self.tasks: list[tuple[Step, asyncio.Task[None]]] = []
        #: What was seen on disk of the pack that each name served last.
        self.served: dict[str, object] = {}
        self.alone: Before | None = None
        self.answered = 0
        self.hung = self.ends = False
        self.unloaded = {step.name for step in plot.steps if step.wish == "unload"}

    async def run(self) -> None:
        for step in self.plot.steps:
            self._begin(step)
            if step.pause is None:
                await self._rest()
            self.rested = step.pause is None or (self.rested and not self.tasks)
            for _ in range(step.pause or 0):
                await asyncio.sleep(0)
        await self._recover()
        self.ends = True
        closing = asyncio.create_task(self.repository.close())
        await self._rest(closing)
        self.world.release_hung()
        await self._rest()
        self._check_closed()

    async def _recover(self) -> None:
        """Let time pass where nothing fails any more, and check that all are back that may come back."""
        self.alone = None
        self.world.failing.clear()
        self.world.release_hung()
        self.repository.ease(self.world.budget.total_bytes)
        for _ in range(3):
            self.now += 1000
            self._begin(Step("time"))
            await self._rest()
        for entry in self.repository.entries():
            may_come = entry.may_pass and not self.world.kept
            assert not (may_come and _slots(self, entry.model)), f"{entry.name}: {entry.reason}"

    def _begin(self, step: Step) -> None:
        """Begin what a step wishes, or do it, where it is done at once."""
        self.alone = None
        if step.wish == "load_all":
            self.poller = Poller(self.repository, (), self.retrier)
        at_once = getattr(self, f"_{step.wish}", None) if step.wish in AT_ONCE else None
        if at_once is None:
            self._task(step, self._wished(step))
        else:
            at_once(step)

    def _write(self, step: Step) -> None:
        versions = self.world.versions(step.name)
        anew = step.number % 3 or not versions
        version = max(versions, default=0) + 1 if anew else versions[-1]
        self.world.write(step.name, version, step.contents or Contents(1, 1, 1))

    def _vanish(self, step: Step) -> None:
        self.world.vanish(step.name)

    def _fail(self, step: Step) -> None:
        kinds = MAY_FAIL[step.name]
        self.world.fail(step.name, kinds[step.number % len(kinds)]())

    def _fault(self, step: Step) -> None:
        for worker in self._workers(step.name):
            worker.served.leave(Fault(Code.READ_FAILED, "the disk is gone"))

    def _hang(self, step: Step) -> None:
        for worker in self._workers(step.name):
            worker.hangs = self.hung = True

    def _release(self, _: Step) -> None:
        self.world.release_hung()

    def _cancel(self, step: Step) -> None:
        # The poller ends with the service alone.
        going = [task for begun, task in self.tasks if not task.done() and begun.wish != "poll"]
        if going:
            going[step.number % len(going)].cancel()

    def _workers(self, name: str) -> list[Any]:
        known = self.repository.entries()
        return [entry.worker for entry in known if entry.model == name and entry.worker is not None]

    def _task(self, step: Step, work: Any) -> None:
        self.alone = Before.of(self, step) if self.rested and not self.hung else None
        self.tasks.append((step, asyncio.get_running_loop().create_task(work)))

    async def _wished(self, step: Step) -> None:
        repository, name, number = self.repository, step.name, step.number
        match step.wish:
            case "load":
                await repository.load(name)
            case "load_all":
                await repository.load_all(repository.set_aside)
            case "unload":
                await repository.unload(name)
            case "replan":
                await repository.replan(name, number * 2 if number % 4 else None)
            case "request":
                await self._request(name, number)
            case "poll":
                await self._poll()
            case "follow":
                await follow(repository)
            case "upload":
                assert step.contents is not None
                await asyncio.sleep(0)
                version = max(self.world.versions(name), default=0) + 1
                self.world.write(name, version, step.contents)
                await repository.load(name)
            case _:
                await self._happens(step.wish, name, number)

    async def _happens(self, what: str, name: str, amount: int) -> None:
        """Let happen ``what`` no client wishes."""
        budget = self.world.budget
        match what:
            case "watch":
                await self._watch()
            case "idle":
                await self._idle(name)
            case "press":
                await self.repository.relieve(max(budget.used_bytes - 2 * amount, 0))
            case "ease":
                self.repository.ease(budget.total_bytes)
            case "time":
                self.now += amount
                await self.retrier.step()
            case _:
                raise AssertionError(what)

    async def _poll(self) -> None:
        if self.poller is not None:
            await self.poller.step()
            await self.poller.step()

    async def _idle(self, name: str) -> None:
        for entry in self.repository.models.of(name):
            entry.uses.used_at -= 2.0
        await self.repository.close_idle()

    async def _request(self, name: str, number: int) -> None:
        limit = 0.0 if number % 11 == 0 else 1000.0
        use = await self.repository.find(name, None, limit)
        use = await self.repository.acquire(use, name, None, limit)
        assert use.worker is not None
        try:
            for _ in range(number if number % 2 else number % 7):
                await asyncio.sleep(0)
            await use.worker.compute(number % 5)  # type: ignore[attr-defined]
            self.answered += 1
        except ClosedToRequestsError:
            # Unloading a model, or ending the service, does not wait; nor does a worker that hangs or
            # fails. A request that found one out of service would have had no answer, either.
            is_ended = self.ends or self.hung or self.world.failed or name in self.unloaded
            assert is_ended or use.worker.fault, f"{name} went before a request that had found it"
        except NotServingError as exc:
            if "being replaced" in str(exc):
                raise AssertionError("a request did not wait for the next version") from exc
            raise
        finally:
            use.end()

    @property
    def room_bytes(self) -> int:
        """What models may hold."""
        return self.world.budget.ceiling_bytes - REQUEST_BYTES

    async def _watch(self) -> None:
        watching.give_up_leaving(self.repository, 2, 10)
        for entry in list(watching.stuck(self.repository, 2, 10)):
            await watching.replace_engine(self.repository, entry)

    async def _rest(self, *more: "asyncio.Task[None]") -> None:
        """Wait until all has come to rest, and check that it is as it shall be."""
        loop = self.world.loop
        for _ in range(_ROUNDS):
            await loop.rest()
            going = [task for _, task in self.tasks if not task.done()]
            going += [task for task in more if not task.done()]
            if not going:
                break
            assert self.hung, f"they wait for ever: {[s for s, t in self.tasks if not t.done()]}"
            self.world.time_out()
            await loop.rest()
            self.tasks.append((Step("watch"), loop.create_task(self._watch())))
        else:
            raise AssertionError("it does not come to rest")
        for step, task in self.tasks:
            exc = None if task.cancelled() else task.exception()
            if exc is not None and not isinstance(exc, FAILURES):
                raise exc
            del step
        for task in more:
            task.result()
        self._check_state()
        if self.alone is not None:
            self.alone.check(self, self.tasks[-1][1])
        self.alone = None
        self.tasks.clear()

    def _check_state(self) -> None:
        """Check what the repository says of its models by what is there."""
        world, held, engines = self.world, self.world.budget.held(), set[Any](self.world.open)
        for entry in self.repository.entries():
            shown = f"{entry.name} is {entry.state}, {entry.reason!r}"
            assert entry.model in world.names, shown
            assert entry.state != "LOADING", shown
            assert entry.coming is None, shown
            assert len(entry.uses) == 0, shown
            assert bool(entry.reason) == (entry.state != "READY"), shown
            assert (entry.absence is None) == (entry.state == "READY"), shown
            if entry.worker is None:
                assert entry.name not in held or entry.is_lost, f"{shown}, and holds memory"
                continue
            assert entry.place is not None
            assert held.get(entry.name) == entry.place.fitted.plan.memory, f"{shown}: {held}"
            engine = entry.worker.engine
            if entry.serves and entry.prepared is not None:
                self.served[entry.name] = entry.prepared.slot.seen
            if entry.serves:
                assert engine in engines, f"{shown}, and its engine is not open"
                assert engine.plan == entry.place.fitted.plan, shown
                assert engine.takes_turns == entry.place.in_turns, shown
            engines.discard(engine)
        instances = self.repository.instances()
        owned = {instance.worker.engine for instance in instances if instance.worker}
        assert engines <= owned, f"{len(engines)} engines that nobody knows"
        assert {instance.state for instance in instances} <= _AT_REST
        assert sorted(instance.key for instance in instances) == sorted(held), "held by nobody"
        lost = sum(instance.state is State.LOST for instance in instances)
        assert lost == len(world.kept), f"{lost} are lost, and {len(world.kept)} kept"
        world.check_memory()

    def _check_closed(self) -> None:
        assert not self.world.open, "an engine is open"
        held = sum(sum(kinds.values()) for kinds in self.world.budget.held().values())
        assert bool(held) <= bool(self.world.kept), f"{self.world.budget.held()} is held"


class Before(NamedTuple):
    """What was there before a wish that is alone."""

    step: Step
    states: dict[str, tuple[Any, ...]]
    failed: int
    kept: int

    @classmethod
    def of(cls, fleet: Fleet, step: Step) -> "Before":
        states = {
            entry.name: (entry.serves, entry.version, entry.place, entry.absence, entry.slot)
            for entry in fleet.repository.entries()
        }
        return cls(step, states, len(fleet.world.failed), len(fleet.world.kept))

    def check(self, fleet: Fleet, task: "asyncio.Task[None]") -> None:
        """Check that the wish has done what it shall, or has left what was."""
        assert not task.cancelled()
        failed = fleet.world.failed[self.failed :]
        exc = task.exception()
        counts = self.step.wish in {"load", "replan", "request", "upload"}
        late = self.step.wish == "request" and not self.step.number % 11
        lost = len(fleet.world.kept) > self.kept
        if counts and not late and not lost and len(failed) <= 1:
            self._check_others(fleet, exc)
        if not failed and self.step.wish == "press":
            assert exc is None, f"memory is not given back: {exc}"
            self._check_relieved(fleet)
        elif not failed:
            self._check_done(fleet, exc)

    def _check_others(self, fleet: Fleet, exc: BaseException | None) -> None:
        """Check that others serve as before, or went for this one."""
        now = {entry.name: entry for entry in fleet.repository.entries()}
        # Also one that had left service: what it leaves is for all.
        gone = any(
            name not in now or now[name].worker is None
            for name, state in self.states.items()
            if state[2]
        )
        for name, (served, _, place, _, slot) in self.states.items():
            if not served or slot.model == self.step.name:
                continue
            entry = now[name]
            assert entry.serves or entry.evicted, f"{name} went: {entry.reason}"
            if entry.evicted:
                assert fleet.plot.policy == "evict-lru", f"{name} was evicted"
                is_evictable = not fleet.plot.pinned or entry.model == NAMES[0]
                assert is_evictable, f"{name} was evicted"
            elif exc is not None and not fleet.plot.several and not gone and place:
                assert entry.place is not None
                assert entry.place.is_like(place), f"{name} is another than it was"

    def _check_relieved(self, fleet: Fleet) -> None:
        """Check that the ceiling is met, or each model has its least, and none may go."""
        budget, evicts = fleet.world.budget, fleet.plot.policy == "evict-lru"
        if not budget.exceeded_bytes or fleet.world.kept or fleet.hung:
            return
        for entry in fleet.repository.entries():
            if entry.place is None or not entry.serves:
                continue
            may_go = evicts and (not fleet.plot.pinned or entry.model == NAMES[0])
            assert not may_go, f"{entry.name} stays above the ceiling"
            assert entry.prepared is not None
            if not entry.prepared.is_there():  # it cannot be opened again
                continue
            contents = fleet.world.contents(entry.prepared.slot.folder)
            resident = entry.place.fitted.plan.memory["resident"]
            assert resident == contents.least, f"{entry.name} keeps more than its least"

    def _check_done(self, fleet: Fleet, exc: BaseException | None) -> None:
        step = self.step
        mine = [entry for entry in fleet.repository.entries() if entry.model == step.name]
        was = {
            name: state
            for name, state in self.states.items()
            if state[4] and state[4].model == step.name
        }
        match step.wish:
            case "load" | "upload" if exc is None:
                for slot in _slots(fleet, step.name):
                    is_there = any(entry.has(slot) for entry in mine)
                    others = [entry for entry in mine if entry.name == slot.name and entry.evicted]
                    assert is_there or (fleet.plot.several and others), (
                        f"{slot.name} is not as on disk"
                    )
            case "load" | "upload":
                for entry in mine:
                    if entry.name in was and was[entry.name][0] and not entry.serves:
                        slot = was[entry.name][4]
                        now = _slots(fleet, step.name)
                        assert slot.seen not in [each.seen for each in now], (
                            f"{entry.name} went: {exc}"
                        )
            case "unload" if exc is None:
                assert all(entry.absence == "unloaded" or entry.is_lost for entry in mine)
            case "unload":
                assert isinstance(exc, NotFoundError)
            case "replan" if exc is None:
                most = None if step.number % 4 == 0 else step.number * 2
                sizes = [entry.place.fitted.plan.total_bytes for entry in mine if entry.place]
                assert most is None or min(sizes) <= most, f"{sizes} is more than {most}"
            case "request" if any(state[0] for state in was.values()):
                assert exc is None, f"no answer from what served: {exc}"
            case "request" if exc is not None and step.number % 11 and not fleet.plot.pinned:
                self._check_comes_back(fleet, was, exc)
            case "poll" if fleet.poller is not None and not fleet.world.failed:
                self._check_followed(fleet)
            case _:
                pass

    def _check_comes_back(self, fleet: Fleet, was: dict[str, Any], exc: BaseException) -> None:
        """Check that what was evicted has come back, where nothing is in its way."""
        room = fleet.room_bytes
        for name, (_, _, _, absence, slot) in was.items():
            contents = fleet.world.packs.get(_read(slot.folder / "manifest.json"))
            changed = [each.seen for each in _slots(fleet, self.step.name)] != [slot.seen]
            if absence != "evicted" or contents is None or changed or not contents.whole:
                continue
            # Under "refuse" none makes room, also where pressure leaves less than all were admitted for,
            # and for a pack that was written since.
            is_other = (
                room < fleet.plot.budget - REQUEST_BYTES or fleet.served.get(name) != slot.seen
            )
            refuses = fleet.plot.policy == "refuse" and is_other
            left = room - (self._others_bytes(fleet) if refuses else 0)
            fits = contents.least + contents.arena <= left and contents.need < REQUEST_BYTES
            blocked = fleet.world.kept or fleet.repository.workers(State.STUCK)
            assert not fits or blocked, f"it does not come back: {exc}"

    def _others_bytes(self, fleet: Fleet) -> int:
        """Return what the other models take at least, each with activations of its own."""
        slots = [entry.slot for entry in fleet.repository.entries()]
        others = [slot for slot in slots if slot is not None and slot.model != self.step.name]
        packs = [fleet.world.packs.get(_read(slot.folder / "manifest.json")) for slot in others]
        return sum(fleet.plot.budget if one is None else one.least + one.arena for one in packs)

    def _check_followed(self, fleet: Fleet) -> None:
        """Check that what serves is what is on disk."""
        there = set(fleet.repository.catalog.on_disk())
        found = [
            fleet.world.contents(slot.folder) for name in there for slot in _slots(fleet, name)
        ]
        room = fleet.world.budget.free_bytes if fleet.world.kept else fleet.room_bytes
        fits = sum(each.least + each.arena for each in found) <= room
        fits &= all(each.whole and each.need < REQUEST_BYTES for each in found)
        for entry in fleet.repository.entries():
            gone = entry.model in fleet.seen and entry.model not in there
            assert not gone or entry.is_lost, f"{entry.name} is not on disk"
            if entry.serves and fits and entry.slot is not None and entry.model in there:
                wanted = [slot.seen for slot in _slots(fleet, entry.model)]
                assert entry.slot.seen in wanted, f"{entry.name} is another on disk"
        fleet.seen = there


def _slots(fleet: Fleet, name: str) -> list[Any]:
    try:
        return fleet.repository.catalog.slots_of(name)
    except (NotFoundError, ModelError):
        return []


def _read(file: Any) -> str:
    return file.read_text() if file.exists() else ""


class FleetFuzzer:
    """Runs sequences, each in a repository of its own."""

    def __init__(self) -> None:
        self._settings = Settings(
            repository=Path(), budget=1 << 20, request_memory=REQUEST_BYTES, queue_limit=3
        )

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Log nothing."""
        before = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(before)

    def run(self, number: int) -> bool:
        """Run one sequence; return whether any request was answered."""
        plot = drawn(number)
        try:
            return self.play(plot)
        except Exception as exc:
            fewest = self._fewest(plot, _kind(exc))
            steps = "\n".join(f"  {step}" for step in fewest.steps)
            exc.add_note(f"sequence {number}: {fewest._replace(steps=())}\n{steps}")
            raise

    def play(self, plot: Plot) -> bool:
        """Run one sequence; return whether any request was answered."""
        root = ImaginedFolder()
        root.mkdir()
        settings = self._settings.model_copy(
            update={
                "repository": root,
                "budget": plot.budget,
                "activations": plot.activations,
                "budget_policy": plot.policy,
                "close_after": {"*": 1.0},
                "evictable": (NAMES[0],) if plot.pinned else ("*",),
            }
        )
        world = World(root, random.Random(plot.seed), settings)
        world.loop = Turns(world.drawn, world.look)
        if plot.several:
            (root / NAMES[0]).mkdir()
            config = "version_policy { latest { num_versions: 2 } }"
            (root / NAMES[0] / "config.pbtxt").write_text(config)
        faults: list[dict[str, Any]] = []
        world.loop.set_exception_handler(lambda _, context: faults.append(context))
        asyncio.set_event_loop(world.loop)
        try:
            fleet = Fleet(plot, world)
            world.loop.run_until_complete(fleet.run())
        finally:
            world.loop.end()
            asyncio.set_event_loop(None)
            world.loop.close()
        assert not faults, faults
        return fleet.answered > 0

    def _fewest(self, plot: Plot, kind: tuple[object, ...]) -> Plot:
        """Return ``plot`` without the steps that do not matter for how it fails."""
        steps = list(plot.steps)
        for place in reversed(range(len(steps))):
            fewer = plot._replace(steps=tuple(steps[:place] + steps[place + 1 :]))
            try:
                self.play(fewer)
            except Exception as exc:  # noqa: BLE001  whatever it is
                if _kind(exc) == kind:
                    del steps[place]
        return plot._replace(steps=tuple(steps))


def _kind(exc: Exception) -> tuple[object, ...]:
    """Return what exceptions of one fault have alike."""
    frames = traceback.extract_tb(exc.__traceback__)
    return type(exc), frames[-1].filename, frames[-1].lineno


def main(arguments: Sequence[str] | None = None) -> int:
    seconds, first = chosen_run(list(sys.argv[1:] if arguments is None else arguments))
    fuzzer = FleetFuzzer()
    with fuzzer.silent():
        return run_examples(fuzzer.run, seconds, first)


if __name__ == "__main__":
    sys.exit(main())
