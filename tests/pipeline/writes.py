"""A plan's operations in bytes, for the validator."""

from collections.abc import Sequence

from loader.ring import RingPlace
from pipeline.planning.plan import Plan
from tests.pipeline.schedule.judge import Write


def writes(plan: Plan) -> list[tuple[str, list[Write]]]:
    """Return what each stage before the kernels writes, and the kernels that use it."""
    none = range(0)
    if not plan.architecture.copies:
        users = [*plan.users, *[none] * (len(plan.read_places) - len(plan.groups))]
        return [("read", _writes(plan.read_places, users))]
    steps = [range(index, index + 1) for index in range(len(plan.groups))]
    steps += [none] * (len(plan.read_places) - len(plan.groups))
    return [("read", _writes(plan.read_places, steps)), ("copy", _writes(plan.places, plan.users))]


def _writes(places: tuple[RingPlace, ...], users: Sequence[range]) -> list[Write]:
    return [
        Write(place.offset, place.length, kernels)
        for place, kernels in zip(places, users, strict=True)
    ]
