"""Sizes as refusals say them: readable, and exact, to be typed back."""


def sized(n_bytes: int) -> str:
    """Return 1.5 MiB (1572864 bytes)."""
    if n_bytes < 1 << 10:
        return f"{n_bytes} bytes"
    unit, factor = ("MiB", 1 << 20) if n_bytes >= 1 << 20 else ("KiB", 1 << 10)
    return f"{n_bytes / factor:.1f} {unit} ({n_bytes} bytes)"
