"""A budget of memory, and the models that answer inside it."""

import contextlib
import itertools
import os
import threading
import time
import warnings
import weakref
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from loader.pool.pool import ReadPool
from models.packs.pack import open_pack
from models.packs.records.ports import Port
from models.sizes import format_size, parse_size
from pipeline.budget.budget import Budget as Ledger
from pipeline.budget.candidates import Candidate, share_budget
from pipeline.budget.errors import RefusedError
from pipeline.budget.sharing import Activations, shared_space
from pipeline.devices.find import open_device
from pipeline.execution.answering import Answering
from pipeline.execution.errors import EngineClosedError, InputError
from pipeline.execution.leases import SharedArena
from pipeline.execution.opened import open_answering
from pipeline.fitting.wanted import NOTHING, EnginePlanResult, of_one_engine
from pipeline.planning.plan import Plan
from pipeline.profiles.profile_file import prepared
from pipeline.schedule.architectures import ARCHITECTURES

#: Without a budget a model has what it can use.
_UNLIMITED = 1 << 50


class _Open:
    """What is open until ``close``, or the end of a ``with``; dropped before, it warns and is closed."""

    def __init__(self, what: str, held: ExitStack) -> None:
        self._closing = held
        self._dropped = weakref.finalize(self, _close_dropped, what, held)
        self._dropped.atexit = False

    def close(self) -> None:
        """Give back what it holds; a request that runs is answered first. A second time it does nothing."""
        self._dropped.detach()
        self._closing.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Model(_Open):
    """A model that answers inside a budget; ``Budget.open`` and ``open`` make it. Thread-safe.

    One request is answered at a time; others wait for it. Closed, it gives its memory back.
    """

    def __init__(
        self, engine: Answering, fitted: EnginePlanResult, budget: "Budget", held: ExitStack
    ) -> None:
        self._engine = engine
        self._fitted = fitted
        self._budget = budget  # which stays as long as one of its models
        self._process = os.getpid()
        super().__init__(f"model {self.name}", held)

    @property
    def name(self) -> str:
        return self._engine.program.name

    @property
    def inputs(self) -> tuple[Port, ...]:
        """What it takes: names, dtypes and shapes, of which some may have a default.

        -1 stands for what differs in the shapes of a pack that has several.
        """
        return self._engine.program.pack.inputs

    @property
    def outputs(self) -> tuple[Port, ...]:
        """What it answers: names, dtypes and shapes; -1 where only a run gives one."""
        return self._engine.program.pack.outputs

    @property
    def memory(self) -> dict[str, int]:
        """Bytes that it holds of the budget, by kind; none when it is closed."""
        return self._engine.plan.memory if self._dropped.alive else {}

    @property
    def plan(self) -> Plan:
        """How it runs: what is resident, what streams, where activations lie; its ``as_dict`` is JSON."""
        return self._fitted.plan

    @property
    def predicted_seconds(self) -> float | None:
        """What a request is expected to take; None without a profile (`layerstream profile PACK`)."""
        return self._fitted.predicted_seconds

    def __call__(
        self, inputs: ArrayLike | Mapping[str, ArrayLike], *, timeout: float | None = None
    ) -> dict[str, NDArray[Any]]:
        """Return the outputs by name, for ``inputs`` by name, or the one input alone; blocks.

        Args:
            inputs: of exactly the shapes that ``self.inputs`` say; arrays of their dtypes are not copied.
                Of a pack of several shapes they have one of these, or with a mask any shorter one.
            timeout: seconds within which the answer must be there; None: whenever it is.

        Raises:
            InputError: one is unknown, missing, or of another dtype or shape. DeadlineError: ``timeout``
                passed. LoaderError: a read failed. EngineClosedError: the model is closed.
        """
        return self._answer(inputs, timeout, threading.Event())

    async def infer(self, inputs: ArrayLike | Mapping[str, ArrayLike]) -> dict[str, NDArray[Any]]:
        """Return the outputs as calling it does, while the event loop goes on.

        Cancelled (by asyncio.timeout, say), it stops computing at the next kernel, and only then returns.
        """
        # Programs that call the model and wait have no event loop.
        import asyncio

        from pipeline.execution.shielded import run_to_completion

        stop = threading.Event()
        answering = asyncio.create_task(asyncio.to_thread(self._answer, inputs, None, stop))
        try:
            return await asyncio.shield(answering)
        except asyncio.CancelledError:
            stop.set()
            self._engine.wake()
            await run_to_completion(asyncio.wait({answering}))
            if not answering.cancelled():
                answering.exception()  # no caller waits for it
            raise

    def _answer(
        self,
        inputs: ArrayLike | Mapping[str, ArrayLike],
        timeout: float | None,
        stop: threading.Event,
    ) -> dict[str, NDArray[Any]]:
        if os.getpid() != self._process:
            raise EngineClosedError(
                f"{self.name}: another process opened it, whose threads are not here: open it after a fork"
            )
        deadline = None if timeout is None else time.monotonic() + timeout
        arrays = self._arrays(inputs)
        with self._woken_after(timeout):
            outputs, _ = self._engine.run(arrays, deadline, stop.is_set)
        return outputs

    @contextlib.contextmanager
    def _woken_after(self, timeout: float | None) -> Iterator[None]:
        """Have the engine look at the deadline when ``timeout`` has passed: a loop looks at none itself."""
        if timeout is None or not self._engine.program.pack.manifest.resident_pieces:
            yield
            return
        timer = threading.Timer(min(timeout, threading.TIMEOUT_MAX), self._engine.wake)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _arrays(self, inputs: ArrayLike | Mapping[str, ArrayLike]) -> dict[str, NDArray[Any]]:
        if isinstance(inputs, Mapping):
            return {name: np.asarray(array, order="C") for name, array in inputs.items()}
        required = self._engine.program.pack.manifest.required_inputs
        if len(required) != 1:
            raise InputError(f"{self.name}: give its inputs by name: {_names(required)}")
        return {required[0].name: np.asarray(inputs, order="C")}


class Budget(_Open):
    """Memory that models share: of their weights, activations, sessions and objects, not of requests.

    Args:
        size: bytes, or as people write it: "256MiB", "300MB".
        device: "cpu", "cuda", "cuda:1", ...
        activations: "own": each model has an arena of its own and they compute at once; "shared": they take
            turns in one; "auto": in turns only where more of them fit so.

    Raises:
        ValueError: no size, or no device. DeviceError: there is no such device here.
    """

    def __init__(
        self, size: int | str, *, device: str = "cpu", activations: Activations = "auto"
    ) -> None:
        self._ledger = Ledger(parse_size(str(size) if isinstance(size, str) else f"{size}B"))
        self._numbers = itertools.count(1)
        with ExitStack() as failed:
            self._device = failed.enter_context(closing(open_device(device)))
            self._pool = failed.enter_context(closing(ReadPool()))
            space, _ = shared_space(self._device, self._ledger.total_bytes, activations)
            self._arena = (
                None if space is None else failed.enter_context(closing(SharedArena(space)))
            )
            self._activations: Activations = "own" if self._arena is None else activations
            super().__init__("a budget", failed.pop_all())

    @property
    def total_bytes(self) -> int:
        return self._ledger.total_bytes

    @property
    def free_bytes(self) -> int:
        """What no model holds."""
        return self._ledger.free_bytes

    def open(self, *packs: str | Path) -> tuple[Model, ...]:
        """Open ``packs`` (NAME, or NAME/VERSION), planned together within what is free; blocks.

        What is left when each has its least is shared evenly. Those opened before keep what they hold.

        Raises:
            RefusedError: they do not fit; the message says which budget would do. ModelError: a pack is
                damaged, or of another machine. PlanError, LoaderError, DeviceError: as they say. Then
                none is open.
        """
        candidates = [self._candidate(Path(pack)) for pack in packs]
        try:
            shares = share_budget(candidates, self._ledger.without(()), self._activations)
        except RefusedError as exc:
            used = self._ledger.used_bytes
            beside = f"; open models hold {format_size(used)} of it beside that" if used else ""
            raise RefusedError(f"{exc}{beside}") from exc
        with ExitStack() as failed:
            models = []
            for candidate, fitted in zip(candidates, shares.plans(), strict=True):
                candidate.known.save()
                models.append(self._open(candidate, of_one_engine(fitted), shares.in_turns))
                failed.callback(models[-1].close)
            failed.pop_all()
        for model in models:
            self._closing.callback(model._dropped.detach)
            self._closing.callback(model._closing.close)
        return tuple(models)

    def _candidate(self, pack: Path) -> Candidate:
        program, profile = prepared(open_pack(pack, self._device.target), self._device)
        return Candidate(program, self._device.adapt(ARCHITECTURES["auto"]), NOTHING, profile)

    def _open(self, candidate: Candidate, fitted: EnginePlanResult, in_turns: bool) -> Model:
        program, plan = candidate.program, fitted.plan
        name = f"{program.name} ({next(self._numbers)})"  # two may be called the same
        with ExitStack() as failed:
            self._ledger.reserve(name, plan.memory, in_turns)
            failed.callback(self._ledger.release, name)
            arena = self._arena if in_turns else None
            lease = None if arena is None else lambda: arena.join(plan.memory["arena"])
            engine = open_answering(program, plan, self._device, self._pool, lease=lease)
            failed.callback(engine.close)
            return Model(engine, fitted, self, failed.pop_all())


def open(  # noqa: A001  as Python's own: what it returns is closed
    pack: str | Path, *, budget: int | str | None = None, device: str = "cpu"
) -> Model:
    """Open one pack within ``budget`` (None: all that it can use); closing it closes its budget.

    Raises:
        As ``Budget`` and ``Budget.open``.
    """
    with ExitStack() as failed:
        own = failed.enter_context(
            Budget(_UNLIMITED if budget is None else budget, device=device, activations="own")
        )
        (model,) = own.open(pack)
        model._closing.callback(own.close)
        failed.pop_all()
        return model


def _close_dropped(what: str, held: ExitStack) -> None:
    """Close what is not referred to any more, and say so."""
    held.close()  # first: the warning may be an error
    warnings.warn(f"{what} was not closed", ResourceWarning, stacklevel=2)


def _names(ports: tuple[Port, ...]) -> str:
    return ", ".join(port.name for port in ports)
