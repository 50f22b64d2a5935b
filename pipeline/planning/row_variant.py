"""What a search among regions gives: variants of a network, parts of which run on rows or channels."""

from dataclasses import dataclass

from pipeline.program.region_plan import Region


@dataclass(frozen=True, slots=True)
class Variant:
    """``regions`` run on rows, the rest whole, in chunks of ``chunk_bytes``; None: as is best.

    ``n_bytes``: of all memory that depends on it, in the smallest plan: arena, ring, scratch, sessions, and
    the objects of its steps. ``activation_bytes``: of arena and scratch alone.
    ``seconds``: of all kernels and copies.
    """

    regions: tuple[Region, ...]
    n_bytes: int
    seconds: float
    chunk_bytes: int | None = None
    activation_bytes: int = 0


@dataclass(frozen=True)
class Variants:
    """What a search found, the fastest and largest first; ``effort``: what it looked at, in words.

    ``complete``: no clock ended it.
    """

    variants: tuple[Variant, ...]
    effort: str = "nothing else was looked at"
    complete: bool = True
