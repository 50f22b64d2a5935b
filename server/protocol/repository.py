"""The model repository extension: what there is, load and unload while serving."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, PositiveInt, ValidationError

from server.context import Context
from server.errors import InvalidRequestError, shown
from server.failures import reason_of
from server.protocol.extensions.config import check_override
from server.protocol.extensions.parameters import flag, read_object, read_parameters
from server.protocol.routing import Asked
from server.repository.entry import Entry


async def index(asked: Asked) -> list[dict[str, Any]]:
    """All models on disk or loaded, their state, and why one does not serve; ``ready``: those that do."""
    return await states(asked.context, flag(await read_object(asked), "ready"))


async def states(context: Context, only_ready: bool) -> list[dict[str, Any]]:
    """Return the state of all models on disk or loaded; ``only_ready``: of those that serve."""
    known = [(entry.model, entry) for entry in context.repository.entries()]
    on_disk = await asyncio.to_thread(context.repository.models.on_disk)
    unknown = [(name, None) for name in {*on_disk}.difference(name for name, _ in known)]
    return [
        {
            "name": name,
            "version": entry.version if entry else None,
            "state": entry.state if entry else "UNAVAILABLE",
            "reason": reason_of(entry.reason, context.settings.repository)
            if entry
            else "not loaded",
        }
        for name, entry in sorted([*known, *unknown], key=_by_name_and_version)
        if not only_ready or (entry and entry.state == "READY")
    ]


def _by_name_and_version(found: tuple[str, Entry | None]) -> tuple[str, int]:
    name, entry = found
    version = entry.version if entry else None
    return name, int(version) if version and version.isdecimal() else 0


async def load(asked: Asked, name: str) -> dict[str, Any]:
    """Load the latest version; 409 with the figures when it does not fit in the budget.

    A configuration that comes along (``parameters.config``) may not change anything.
    """
    return await load_model(asked.context, name, await read_parameters(asked))


async def load_model(context: Context, name: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Load the latest version of model ``name``.

    Raises:
        InvalidRequestError: ``parameters`` would change it. Otherwise as Repository.load.
    """
    for parameter, value in parameters.items():
        if parameter == "config":
            check_override(value, name)
        elif parameter.startswith("file:"):
            raise InvalidRequestError(
                f"parameters: {shown(parameter)}: models are compiled to packs, none comes by load"
            )
    entry = await context.repository.load(name)
    context.metrics.expect(name, entry.version)
    return {"name": name, "state": entry.state}


def _whole(value: object) -> object:
    """Return 8e6 as the integer that it is to JSON, which has one kind of numbers."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


class Replan(BaseModel):
    """``memory_bytes``: the most that each loaded version may take; null: what the budget leaves it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    memory_bytes: Annotated[PositiveInt, BeforeValidator(_whole)] | None

    @classmethod
    def of(cls, document: dict[str, Any]) -> Self:
        """Return what ``document`` says.

        Raises:
            InvalidRequestError: it is not of this form.
        """
        try:
            return cls.model_validate(document)
        except ValidationError:
            raise InvalidRequestError(
                'replan takes {"memory_bytes": N}, a number of bytes above 0, or null'
            ) from None


async def replan(asked: Asked, name: str) -> dict[str, Any]:
    """Serve a loaded model in less memory, or in more again; its requests wait in line meanwhile."""
    wanted = Replan.of(await read_object(asked))
    entries = await asked.context.repository.replan(name, wanted.memory_bytes)
    taken: Counter[str] = Counter()
    for entry in entries:
        taken.update(entry.fitted.plan.memory if entry.fitted else {})
    return {"name": name, "state": entries[-1].state, "memory_bytes": dict(taken) or None}


async def unload(asked: Asked, name: str) -> dict[str, Any]:
    """Finish the model's requests and give its memory back; no model depends on another."""
    return await unload_model(asked.context, name, await read_parameters(asked))


async def unload_model(
    context: Context, name: str, parameters: Mapping[str, Any]
) -> dict[str, Any]:
    """Unload model ``name``; raises as Repository.unload, and for ``parameters`` of a wrong type."""
    flag(parameters, "unload_dependents")
    await context.repository.unload(name)
    return {"name": name, "state": "UNAVAILABLE"}
