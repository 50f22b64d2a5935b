"""Sizes as plans and refusals say them."""


def brief(n_bytes: int) -> str:
    """Return 1.5 MiB."""
    if n_bytes < 1 << 10:
        return f"{n_bytes} bytes"
    unit, factor = ("MiB", 1 << 20) if n_bytes >= 1 << 20 else ("KiB", 1 << 10)
    return f"{n_bytes / factor:.1f} {unit}"


def sized(n_bytes: int) -> str:
    """Return 1.5 MiB (1572864 bytes): readable, and exact, to be typed back."""
    return brief(n_bytes) if n_bytes < 1 << 10 else f"{brief(n_bytes)} ({n_bytes} bytes)"
