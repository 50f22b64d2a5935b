"""The pipeline architectures of seed 003 as data: the schedule has rules, these choose among them."""

from dataclasses import dataclass, replace
from typing import Literal

Order = Literal["free", "sequential", "lockstep"]


@dataclass(frozen=True)
class Architecture:
    """How a sweep brings weights to kernels.

    ``stages`` in the order data flows. ``order``: operations run as soon as data and space allow (free),
    one at a time (sequential), or each stage one step a cycle (lockstep). ``slots``: each buffer is so
    many places of the largest chunk; None: it is a ring. ``resident``: all weights stay in memory.
    ``tuned``: its ring and more are found by planning on a profile: "search" (Section V-D) or "auto".
    ``factor`` times the sum or the largest of the chunks is the weight memory that ``equation`` gives.
    """

    name: str
    stages: tuple[str, ...]
    summary: str
    equation: str = ""
    factor: int = 1
    order: Order = "free"
    slots: int | None = None
    resident: bool = False
    tuned: Literal["", "search", "auto"] = ""

    @property
    def copies(self) -> bool:
        """Whether kernels use a copy of what the disk wrote."""
        return "copy" in self.stages

    @property
    def ahead(self) -> Literal["never", "tail"]:
        """When the head of the next sweep is read, where only the ring's size is given."""
        return "tail" if self.tuned == "auto" else "never"


_THREE = ("read", "copy", "kernel")
_TWO = ("read", "kernel")

ARCHITECTURES: dict[str, Architecture] = {
    architecture.name: architecture
    for architecture in (
        Architecture(
            "pre",
            _TWO,
            "preloading (Section II-E): all weights in memory",
            "Eq. 2 without its copy",
            resident=True,
        ),
        Architecture(
            "seq",
            _THREE,
            "sequential (Section V-A): read, copy, compute, one at a time",
            "Eq. 4",
            factor=2,
            order="sequential",
            slots=1,
        ),
        Architecture(
            "sync",
            _THREE,
            "synchronous pipeline (Section V-B): stages advance in common cycles",
            "Eq. 6",
            factor=4,
            order="lockstep",
            slots=2,
        ),
        Architecture(
            "async",
            _THREE,
            "asynchronous pipeline (Section V-C): stages advance at their own paces",
            "Eq. 8",
            factor=2,
        ),
        Architecture(
            "async-md",
            _THREE,
            "async with the smallest rings of minimal delay (Section V-D)",
            tuned="search",
        ),
        Architecture(
            "2s",
            _TWO,
            "two-stage pipeline (Section VI): kernels use what the disk wrote",
            "Eq. 9",
        ),
        Architecture(
            "2s-md",
            _TWO,
            "2s with the smallest ring of minimal delay (Section V-D)",
            tuned="search",
        ),
        Architecture(
            "auto",
            _TWO,
            "2s with ring, chunks, resident weights and reads planned on a profile",
            tuned="auto",
        ),
    )
}


def with_copies(architecture: Architecture) -> Architecture:
    """Return ``architecture`` where kernels use a copy of what the disk wrote, an expanded one perhaps."""
    if architecture.copies or architecture.resident:
        return architecture
    if architecture.tuned == "auto":
        return COPIED_AUTO
    return replace(architecture, stages=_THREE, equation="Eq. 8", factor=2)


#: ``auto`` where kernels use a copy of what the disk wrote.
COPIED_AUTO = replace(
    ARCHITECTURES["auto"],
    stages=_THREE,
    summary="async with ring, chunks and resident weights planned on a profile",
)
