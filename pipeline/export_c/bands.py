"""How many rows at a time each step computes that can do so: as many as there is memory for.

The smallest arena is that of one row at a time. What other steps need at once is then free in most steps,
so their bands are larger and overlap less: rows that two bands need are made twice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pipeline.export_c.errors import ExportError
from pipeline.export_c.lowering.steps import Bands, Program, Step
from pipeline.export_c.memory import Memory, plan_memory

_ATTEMPTS = 8


def plan_in_bands(
    program: Program,
    inputs: Sequence[str],
    outputs: Sequence[str],
    ports_inside: bool,
    arena_bytes: int | None,
) -> Memory:
    """Return where everything lies in at most ``arena_bytes``, None: in as few as there can be.

    Raises:
        ExportError: it takes more; the message says how much at least.
    """

    def planned(rows: Mapping[str, int]) -> Memory:
        steps = tuple(_with_rows(step, rows.get(step.output, 1)) for step in program.steps)
        return plan_memory(replace(program, steps=steps), inputs, outputs, ports_inside)

    least = planned({})
    limit = least.arena_bytes if arena_bytes is None else arena_bytes
    if limit < least.arena_bytes:
        raise ExportError(
            f"the arena has {limit} bytes, the smallest that works {least.arena_bytes}"
        )
    wanted = limit
    for _ in range(_ATTEMPTS):
        memory = planned(_most_rows(least, wanted))
        if memory.arena_bytes <= limit:
            return memory
        wanted -= memory.arena_bytes - limit  # places leave gaps
    return least


def _with_rows(step: Step, rows: int) -> Step:
    return step if step.bands is None else replace(step, bands=replace(step.bands, rows=rows))


def _most_rows(least: Memory, n_bytes: int) -> dict[str, int]:
    """Return how many rows at a time each step can compute in an arena of ``n_bytes``, by its output."""
    return {
        step.output: _rows(step.bands, n_bytes - held + step.bands.n_bytes)
        for step, held in zip(least.steps, least.held, strict=True)
        if step.bands is not None
    }


def _rows(bands: Bands, n_bytes: int) -> int:
    """Return the most rows whose scratch takes ``n_bytes``, in bands as equal as they can be."""
    most = 1
    for rows in range(2, bands.height + 1):
        if replace(bands, rows=rows).n_bytes > n_bytes:
            break
        most = rows
    return -(-bands.height // -(-bands.height // most))
