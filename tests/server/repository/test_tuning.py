"""Plans raced while a model serves: in its memory, in idle time, and requests go first."""

import asyncio
import contextlib
import logging
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from models.packs.pack import Pack, open_pack
from pipeline.devices.cpu import CpuDevice
from pipeline.devices.find import open_device
from pipeline.fitting.fit import fit
from pipeline.fitting.wanted import LEAST, EnginePlanResult
from pipeline.planning.plan import Choice
from pipeline.profiles.machine import this_machine
from pipeline.profiles.profile import Profile
from pipeline.profiles.profile_file import FILE, load_profile, manifest_checksum, save_profile
from pipeline.program.prepare import prepare
from pipeline.schedule.architectures import ARCHITECTURES
from server.repository import tuning
from server.repository.entry import Entry
from server.repository.tuning import Tuner
from server.repository.worker import Worker
from tests.examples import over
from tests.pipeline.made_profiles import measured, profile
from tests.server.conftest import SettingsFactory
from tests.server.support import (
    Faults,
    Gate,
    Packs,
    ServiceUnderTest,
    arrays,
    close,
    error,
    inputs_for,
    serving,
    until,
)

AUTO = ARCHITECTURES["auto"]
#: The smallest plan is the reference: so many times a pass of `pre`.
REFERENCE = 2.0
IDLE = 5.0


class Clock:
    """Time passes where a test says so."""

    def __init__(self) -> None:
        self.now = 1e9  # long after all requests

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def repository(packs: Packs, tmp_path: Path) -> Path:
    """ "tiny" with a profile in which its smallest plan was measured, and nothing else."""
    shutil.copytree(packs.repository / "tiny", tmp_path / "tiny")
    pack = packed(tmp_path)
    with contextlib.closing(open_device("cpu", 1)) as device:
        program = prepare(pack, device)
        estimates = replace(
            profile(program),
            manifest=manifest_checksum(pack),
            machine=this_machine(pack.weights_path, device),
        )
        smallest = fit(program, AUTO, LEAST).plan
        save_profile(estimates.with_plans((measured(smallest, REFERENCE),)), pack)
    return tmp_path


def packed(repository: Path) -> Pack:
    return open_pack(repository / "tiny")


def saved_profile(repository: Path) -> Profile:
    """Return the profile on the disk."""
    pack = packed(repository)
    with contextlib.closing(CpuDevice(1)) as device:
        return load_profile(pack, this_machine(pack.weights_path, device))


@pytest.fixture
async def tuned(
    settings: SettingsFactory, packs: Packs, repository: Path
) -> AsyncIterator[ServiceUnderTest]:
    budget = packs.smallest("tiny") + packs.weights("tiny") // 3
    configured = settings(models_budget=budget, models=("tiny",), repository=repository)
    async with serving(configured) as service:
        await until(lambda: not entry_of(service).fitted.heuristic)  # type: ignore[union-attr]
        yield service


def entry_of(service: ServiceUnderTest) -> Entry:
    (entry,) = service.inside.repository.entries()
    return entry


def choice_of(service: ServiceUnderTest) -> Choice:
    result = entry_of(service).fitted
    assert isinstance(result, EnginePlanResult)
    return result.plan.choice


def tuner_of(service: ServiceUnderTest, clock: Clock) -> Tuner:
    tuner = service.inside.repository.tuner()
    tuner._clock = clock
    return tuner


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Races of real passes end soon."""
    monkeypatch.setattr("pipeline.measuring.races._MAX_ROUNDS", 3)
    monkeypatch.setattr("server.repository.tuning._MAX_PASSES", 1)


def is_pending(tuner: Tuner) -> bool:
    """Return whether a race has started and not ended."""
    return tuner._contest is not None


class Scripted:
    """Passes of plans that take what ``seconds`` says of each; counts them."""

    def __init__(self, seconds: Callable[[Choice], float]) -> None:
        self.seconds = seconds
        self.passes = Counter[Choice]()

    async def measure(self, worker: Worker, *_: object) -> float:
        choice = worker.engine.plan.choice  # type: ignore[union-attr]
        self.passes[choice] += 1
        return self.seconds(choice)


def scripted(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, seconds: Callable[[Choice], float]
) -> Scripted:
    script = Scripted(seconds)

    async def measure(worker: Worker, *options: object) -> float:
        clock.now += 0.02
        return await script.measure(worker, *options)

    monkeypatch.setattr(Worker, "measure", measure)
    return script


async def right(service: ServiceUnderTest, packs: Packs, seed: int = 0) -> None:
    inputs = inputs_for("tiny", seed)
    close(arrays(await service.infer("tiny", inputs)), packs.expected("tiny", inputs))


async def test_the_fastest_serves_and_its_measurement_is_in_the_profile(
    tuned: ServiceUnderTest, repository: Path, packs: Packs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ratios are to `pre`, by way of the reference; no pass is of more memory than the model has."""
    clock, before = Clock(), choice_of(tuned)
    budget, sizes = tuned.inside.budget, set[int]()
    order: dict[Choice, float] = {}

    def seconds(choice: Choice) -> float:
        n_bytes = sum(sum(kinds.values()) for kinds in budget.held().values())
        sizes.add(n_bytes)
        return order.setdefault(choice, 1.0 if not order else 0.9 - len(order) / 10)

    script = scripted(monkeypatch, clock, seconds)
    assert await tuner_of(tuned, clock).step() == "tiny"
    reference, *others = order  # the reference runs first
    assert len(others) >= 2
    fastest = min(order, key=order.__getitem__)
    assert choice_of(tuned) == fastest != before
    assert max(sizes) <= budget.total_bytes - budget.request_bytes
    plans = {plan.choice: plan for plan in saved_profile(repository).plans}
    assert plans[reference].ratio == REFERENCE
    assert plans[fastest].ratio == pytest.approx(REFERENCE * order[fastest])
    assert plans.keys() == order.keys()
    assert before in order
    result = entry_of(tuned).fitted
    assert result is not None
    assert result.prediction is not None
    assert result.prediction.measured
    assert script.passes[fastest] > script.passes[max(others, key=order.__getitem__)]
    await right(tuned, packs)


async def test_what_was_raced_is_not_raced_again_and_a_new_process_knows_it(
    tuned: ServiceUnderTest,
    repository: Path,
    settings: SettingsFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    scripted(monkeypatch, clock, lambda choice: 1.0 + len(choice.resident))
    tuner = tuner_of(tuned, clock)
    assert await tuner.step() == "tiny"
    winner = choice_of(tuned)
    clock.now += 1e6
    assert await tuner.step() is None
    configured = settings(
        models_budget=tuned.inside.budget.total_bytes - tuned.inside.budget.request_bytes,
        models=("tiny",),
        repository=repository,
    )
    async with serving(configured) as again:
        await until(lambda: choice_of(again) == winner)


@pytest.mark.usefixtures("short")
async def test_a_request_goes_first_and_the_race_goes_on_later(
    settings: SettingsFactory, packs: Packs, repository: Path, faults: Faults
) -> None:
    """It is answered by the plan that is there; then the one from before serves again."""
    budget = packs.smallest("tiny") + packs.weights("tiny") // 3
    configured = settings(models_budget=budget, models=("tiny",), repository=repository)
    async with serving(configured) as service:
        await until(lambda: not entry_of(service).fitted.heuristic)  # type: ignore[union-attr]
        clock, home, gate = Clock(), choice_of(service), Gate()
        tuner = tuner_of(service, clock)

        def of_a_candidate() -> None:
            if choice_of(service) != home and not gate.is_reached:
                gate.hold()

        faults.kernel = of_a_candidate
        racing = asyncio.create_task(tuner.step())
        await gate.reached()
        asking = asyncio.create_task(right(service, packs, seed=1))
        await until(lambda: len(entry_of(service).uses))
        gate.open()
        await asking
        assert await racing == "tiny"
        assert choice_of(service) == home
        assert is_pending(tuner)
        assert len(saved_profile(repository).plans) == 1
        assert await tuner.step() == "tiny"  # the clock is far ahead of that request
        assert not is_pending(tuner)
        await right(service, packs)


@pytest.mark.usefixtures("short")
async def test_requests_all_the_while_are_right(tuned: ServiceUnderTest, packs: Packs) -> None:
    """With real passes, on whichever plan is there."""
    clock = Clock()
    tuner = tuner_of(tuned, clock)
    for seed in range(6):
        racing = asyncio.create_task(tuner.step())
        for _ in range(10 * seed):
            await asyncio.sleep(0)
        await right(tuned, packs, seed)
        await racing
    assert entry_of(tuned).serves


async def test_another_change_ends_a_race_immediately(
    tuned: ServiceUnderTest, packs: Packs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model is as it was before, and then unloaded."""
    clock, home, stopped = Clock(), choice_of(tuned), asyncio.Event()
    choices = list[Choice]()

    async def measure(worker: Worker, *_: object) -> float:
        if choice_of(tuned) != home:
            stopped.set()
            await asyncio.Event().wait()
        return 1.0

    monkeypatch.setattr(Worker, "measure", measure)
    close_model = tuned.inside.repository._executor.close

    async def closed(entry: Entry, *reasons: Any, **options: Any) -> None:
        if entry.serves:
            choices.append(choice_of(tuned))
        await close_model(entry, *reasons, **options)

    monkeypatch.setattr(tuned.inside.repository._executor, "close", closed)
    tuner = tuner_of(tuned, clock)
    racing = asyncio.create_task(tuner.step())
    await stopped.wait()
    await tuned.inside.repository.unload("tiny")
    await racing
    assert choices == [home]
    assert await tuner.step() is None


async def test_a_busy_service_does_not_race(tuned: ServiceUnderTest) -> None:
    clock = Clock()
    entry, tuner = entry_of(tuned), tuner_of(tuned, clock)
    entry.uses.begin()
    assert await tuner.step() is None
    entry.uses.end()
    clock.now = entry.uses.used_at + IDLE - 0.1
    assert await tuner.step() is None


async def test_a_model_whose_requests_have_little_time_is_not_raced(
    tuned: ServiceUnderTest, caplog: pytest.LogCaptureFixture
) -> None:
    parameters = {"timeout": 100_000}
    response = await tuned.infer("tiny", inputs_for("tiny"), parameters=parameters)
    if response.status_code != 200:
        error(response, response.status_code)
    tuner = tuner_of(tuned, Clock())
    with caplog.at_level(logging.INFO):
        assert await tuner.step() is None
        assert await tuner.step() is None
    assert caplog.text.count("its plans are not raced") == 1
    assert "a request had 0." in caplog.text


async def test_without_a_profile_the_log_has_the_command_once(
    settings: SettingsFactory, packs: Packs, repository: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (packed(repository).folder / FILE).unlink()
    budget = packs.smallest("tiny") + packs.weights("tiny") // 3
    async with serving(
        settings(models_budget=budget, models=("tiny",), repository=repository)
    ) as it:
        await until(lambda: not entry_of(it).fitted.heuristic)  # type: ignore[union-attr]
        tuner = tuner_of(it, Clock())
        with caplog.at_level(logging.INFO):
            assert await tuner.step() is None
            assert await tuner.step() is None
    assert caplog.text.count("its plans are not raced: no profile of this machine") == 1


async def test_without_a_measured_plan_nothing_is_compared(
    settings: SettingsFactory, packs: Packs, repository: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_profile(
        replace(saved_profile(repository), plans=()),
        packed(repository),
    )
    budget = packs.smallest("tiny") + packs.weights("tiny") // 3
    configured = settings(models_budget=budget, models=("tiny",), repository=repository)
    async with serving(configured) as service:
        await until(lambda: not entry_of(service).fitted.heuristic)  # type: ignore[union-attr]
        clock, home = Clock(), choice_of(service)
        tuner = tuner_of(service, clock)
        with caplog.at_level(logging.INFO):
            assert await tuner.step() == "tiny"
            clock.now += 1e6
            assert await tuner.step() is None
        assert choice_of(service) == home
    assert caplog.text.count("no measured plan within this memory") == 1


async def test_a_plan_that_cannot_be_opened_ends_the_race_and_the_model_serves_on(
    tuned: ServiceUnderTest,
    packs: Packs,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, home = Clock(), choice_of(tuned)
    tuner = tuner_of(tuned, clock)
    scripted(monkeypatch, clock, lambda choice: 1.0)
    opener = tuned.inside.repository._opener
    reopen = opener.reopen

    def failing(name: str, model: Any, target: Any) -> Any:
        if target.fitted.plan.choice != home:
            raise OSError("no room for it")
        return reopen(name, model, target)

    monkeypatch.setattr(opener, "reopen", failing)
    assert await tuner.step() == "tiny"
    assert "its plans are not raced: no room for it" in caplog.text
    assert choice_of(tuned) == home
    await right(tuned, packs)
    assert await tuner.step() is None
    clock.now += 600.0
    monkeypatch.setattr(opener, "reopen", reopen)
    assert await tuner.step() == "tiny"


@over("unused_bytes", (0, 99, 101))
def test_what_was_measured_is_raced_only_where_it_leaves_memory(unused_bytes: int) -> None:
    """More than a sixteenth of what it may have."""
    measured_one = SimpleNamespace(measured=True, sweep_seconds=1.0)
    plan = SimpleNamespace(total_bytes=1600 - unused_bytes)
    served = SimpleNamespace(
        worker=SimpleNamespace(served=SimpleNamespace(steady_seconds=1.0)),
        place=SimpleNamespace(fitted=SimpleNamespace(plan=plan, prediction=measured_one)),
        limit_bytes=1600,
    )
    nothing: Any = None
    tuner = Tuner(
        **dict.fromkeys(("models", "budget", "reconciler", "planning", "preparer"), nothing),
        executor=nothing,
        limit_seconds=1.0,
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tuning, "_served", lambda _: served)
        patched.setattr(tuner, "_refusal", lambda *_: "")
        assert tuner._is_due(Entry("tiny")) == (unused_bytes > 100)


def delays(service: ServiceUnderTest, seconds: float) -> None:
    """Note requests as if each had taken so many seconds."""
    served = entry_of(service).worker.served  # type: ignore[union-attr]
    served._earlier_passes -= 32
    served.usual_seconds = seconds


async def test_slower_requests_have_it_raced_again_after_a_while(
    tuned: ServiceUnderTest, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    factor: Mapping[str, float] = {"": 1.0}
    script = scripted(monkeypatch, clock, lambda choice: factor[""] * (1.0 + len(choice.resident)))
    tuner = tuner_of(tuned, clock)
    assert await tuner.step() == "tiny"
    fastest = min(script.passes, key=lambda choice: len(choice.resident))
    took = 1.0 + len(fastest.resident)
    script.passes.clear()
    delays(tuned, 1.1 * took)
    clock.now += 600.0
    assert await tuner.step() is None
    delays(tuned, 1.3 * took)
    assert await tuner.step() == "tiny"
    assert script.passes
    delays(tuned, 1.3 * took)
    assert await tuner.step() is None  # not before a while


async def test_an_uneven_machine_changes_nothing(
    tuned: ServiceUnderTest, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, home = Clock(), choice_of(tuned)
    count = 0

    def seconds(choice: Choice) -> float:
        nonlocal count
        count += 1
        return 1.0 + (count * count % 11) / 5

    monkeypatch.setattr("server.repository.tuning._MAX_PASSES", 1)
    scripted(monkeypatch, clock, seconds)
    assert await tuner_of(tuned, clock).step() == "tiny"
    assert choice_of(tuned) == home
    assert len(saved_profile(repository).plans) == 1
