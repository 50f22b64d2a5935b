"""The state of the server for the page: figures that are there already, sent as events."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from models.packs.manifest import Manifest
from server.errors import BusyError, NotFoundError
from server.faults import reason_of
from server.metrics.requests import InferenceStatistics
from server.operation.process import installed_version, process_memory
from server.protocol.answers import STILL_HERE, written
from server.repository.entry import Entry
from server.repository.repository import Repository
from server.service import Service

# A state is sent when it is new: the memory of a process is never the same to the byte.
_STEP_BYTES = 1 << 20


async def current_state(service: Service) -> dict[str, Any]:
    """Return the state of the server, with the models that are on disk now."""
    on_disk = await asyncio.to_thread(_on_disk, service.repository)
    return state(service, on_disk)


def _on_disk(repository: Repository) -> list[str]:
    try:
        return repository.catalog.on_disk()
    except NotFoundError:  # the folder is gone; those that are loaded are shown
        return []


def state(service: Service, on_disk: Iterable[str]) -> dict[str, Any]:
    """Return the state of everything; counters (sweeps, seconds, bytes) go on from the start of the server.

    ``on_disk``: names in the repository; models that were never loaded are shown, too. Where several
    versions serve, each has a name of its own (``model``: that of all).
    """
    budget, pool, root = service.budget, service.request_memory, service.settings.repository
    known = service.repository.entries()
    unknown = set(on_disk).difference(entry.model for entry in known)
    inferences = service.metrics.requests.inferences
    models = [
        *(_model(entry, root) | {"errors": _errors(entry, inferences)} for entry in known),
        *map(_absent, unknown),
    ]
    return {
        "version": installed_version(),
        "process": _process(service),
        "budget": {
            "total_bytes": budget.total_bytes,
            "used_bytes": budget.used_bytes,
            "request_bytes": budget.request_bytes,
            "request_used_bytes": pool.used_bytes,
            "request_waiting": service.request_memory.waiting,
        },
        "memory": budget.account(),
        "search": service.repository.search,
        "uploads": [
            {"name": name, **asdict(step)} for name, step in sorted(service.uploads.steps().items())
        ],
        "models": sorted(models, key=lambda model: model["name"]),
    }


def _process(service: Service) -> dict[str, int | None]:
    """Return what the process holds, its limit (None: there is none), and the bytes that it has read."""
    memory = process_memory()
    return {
        "anonymous_bytes": memory.anonymous // _STEP_BYTES * _STEP_BYTES,
        "file_bytes": memory.file // _STEP_BYTES * _STEP_BYTES,
        "limit_bytes": service.settings.memory,
        "read_bytes": service.pool.statistics().figures.n_bytes,
    }


def _errors(entry: Entry, inferences: InferenceStatistics) -> dict[str, int]:
    """Return how many requests to ``entry`` failed since the start, by outcome."""
    return {
        outcome.value: count
        for _, version, statistics in inferences.of_models([entry.model])
        if version == entry.version
        for outcome, count in statistics.failures.items()
    }


def _absent(name: str) -> dict[str, Any]:
    reason = {"state": "UNAVAILABLE", "reason": "not loaded", "absence": "unloaded"}
    return {"name": name, "model": name, **reason, "errors": {}}


def _model(entry: Entry, root: Path) -> dict[str, Any]:
    shown = {
        "name": entry.name,
        "model": entry.model,
        "version": entry.version,
        "state": entry.state,
        "reason": reason_of(entry.reason, root),
        "absence": entry.absence,
        "weight_bytes": entry.weight_bytes,
    }
    if entry.worker is None or entry.fitted is None or entry.pack is None:
        return shown
    engine, fitted = entry.worker.engine, entry.fitted
    counted = engine.statistics()
    return shown | {
        "architecture": fitted.plan.architecture.name,
        "plan_bytes": fitted.plan.total_bytes,
        "in_turns": engine.takes_turns,
        "predicted_seconds": fitted.predicted_seconds,
        "bound_seconds": fitted.bound_seconds,
        **_image(entry.pack.manifest),
        "waiting": len(entry.worker.line),
        "ahead_bytes": engine.ahead_bytes,
        "sweeps": entry.worker.served.sweeps,
        "sweep_seconds": entry.worker.served.sweep_seconds,
        "stall_seconds": counted.stall_seconds,
        "read_bytes": counted.read_bytes,
        **({"shapes": counted.shapes} if counted.shapes else {}),
    }


def _image(manifest: Manifest) -> dict[str, Any]:
    """Return how the page may ask with an image, or with a text (``takes_text``).

    The verb is in ``takes``, or in ``takes_none`` why there is none.
    """
    if manifest.text_verb is not None:
        return {"takes": manifest.text_verb, "takes_text": True}
    shown: dict[str, Any] = {"takes": manifest.verb}
    if manifest.sound_verb is not None:
        shown["takes_none"] = f"it takes sounds: send the file of one to :{manifest.sound_verb}"
    elif manifest.verb is None:
        shown["takes_none"] = "it was compiled without --preprocess"
    if manifest.detection is not None:
        shown["score_threshold"] = manifest.detection.score_threshold
    return shown


# The state of the server as events: a look a second for each watcher, sent where it has changed, and once
# more after that, so that rates, which are differences, become 0.

#: Watchers at a time: each keeps a connection.
MOST_WATCHERS = 16
_SECONDS = 1.0
#: After so many looks without a change a comment line is sent, which shows whether the client is there.
_SILENT = 15


class Watchers:
    """Clients that watch what ``look`` returns; ``ended`` ends all of them.

    ``start``: returns the first event of each, None for none.
    """

    def __init__(
        self,
        look: Callable[[], Awaitable[Any]],
        ended: asyncio.Event,
        seconds: float = _SECONDS,
        start: Callable[[], Any] | None = None,
    ) -> None:
        self._look = look
        self._start = start
        self._ended = ended
        self._seconds = seconds
        self._count = 0

    async def events(self) -> AsyncGenerator[bytes]:
        """Be one more that watches; yield events: the state as JSON, once a second while it changes.

        Raises:
            BusyError: too many watch.
        """
        if self._count >= MOST_WATCHERS:
            raise BusyError(f"{MOST_WATCHERS} pages are open")
        self._count += 1
        try:
            if self._start is not None:
                yield written("start", orjson.dumps(self._start()))
            said, silent = b"", 0
            while True:
                now = orjson.dumps(await self._look())
                silent = 0 if now != said else silent + 1
                if silent <= 1:
                    said = now
                    yield written("state", now)
                elif silent % _SILENT == 0:
                    yield STILL_HERE
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._seconds):
                        await self._ended.wait()
                        return
        finally:
            self._count -= 1
