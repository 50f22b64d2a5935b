"""Sizes as plans and refusals say them."""

from math import ceil, isfinite


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
    """Return 12.3 ms; rounded ``up`` where as much shall be enough."""
    tenths = 1e4 * seconds
    return f"{(ceil(tenths) if up and isfinite(tenths) else tenths) / 10:.1f} ms"
