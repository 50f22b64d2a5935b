"""Judges placements by brute force; shares no code with what makes them. For tests and benchmarks."""

from pipeline.planning.offsets.problem import LiveBuffer, Placement, Problem


def violations(problem: Problem, placement: Placement) -> list[str]:
    """Return what is wrong with any pair, alignment, pin or end. Empty: the placement is valid."""
    found = []
    if len(placement.offsets) != len(problem.buffers):
        return [f"{len(placement.offsets)} offsets for {len(problem.buffers)} buffers"]
    placed = list(zip(problem.buffers, placement.offsets, strict=True))
    for i, (buffer, at) in enumerate(placed):
        if at < 0 or at % buffer.alignment:
            found.append(f"buffer {i} lies at {at}")
        if buffer.pin is not None and buffer.pin != at:
            found.append(f"buffer {i} lies at {at}, its pin is {buffer.pin}")
        if _lives(buffer) and at + _room(buffer) > placement.n_bytes:
            found.append(f"buffer {i} ends beyond the arena")
        for j, (other, other_at) in enumerate(placed[:i]):
            together = buffer.start < other.end and other.start < buffer.end
            apart = at + _room(buffer) <= other_at or other_at + _room(other) <= at
            if _lives(buffer) and _lives(other) and together and not apart:
                found.append(f"buffers {j} and {i} overlap")
    return found


def _lives(buffer: LiveBuffer) -> bool:
    return buffer.n_bytes > 0 and buffer.end > buffer.start


def _room(buffer: LiveBuffer) -> int:
    return buffer.n_bytes + -buffer.n_bytes % buffer.alignment
