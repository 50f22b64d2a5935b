"""Sizes as plans and refusals say them."""

from math import ceil, floor, isfinite, log10

from pipeline.program.program import Program
from pipeline.schedule.architectures import Architecture


def brief(n_bytes: int) -> str:
    """Return 1.5 MiB."""
    if n_bytes < 1 << 10:
        return f"{n_bytes} bytes"
    unit, factor = ("MiB", 1 << 20) if n_bytes >= 1 << 20 else ("KiB", 1 << 10)
    return f"{n_bytes / factor:.1f} {unit}"


def sized(n_bytes: int) -> str:
    """Return 1.5 MiB (1572864 bytes): readable, and exact, to be typed back."""
    return brief(n_bytes) if n_bytes < 1 << 10 else f"{brief(n_bytes)} ({n_bytes} bytes)"


def milliseconds(seconds: float, *, up: bool = False) -> str:
    """Return 12.3 ms, or 0.0012 ms; rounded ``up`` where as much shall be enough."""
    number = 1e3 * seconds
    if not isfinite(number):
        return f"{number} ms"
    decimals = 1 if number == 0.0 or number >= 0.1 else 1 - floor(log10(number))
    units = number * 10**decimals
    return f"{(ceil(units) if up else round(units)) / 10**decimals:.{decimals}f} ms"


def chunk_advice(program: Program, architecture: Architecture) -> str:
    """Return how much a smaller --chunk would help, to end a message with; empty where it changes nothing.

    It does nothing for weights that all stay in memory, and for layers that cannot be cut any finer.
    """
    least = program.least_chunk_bytes
    if architecture.resident or least >= program.largest_chunk_bytes:
        return ""
    return f", or compile with a smaller --chunk: the largest one can have {sized(least)}"
