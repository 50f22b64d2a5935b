"""One plan of a network in several shapes, which run in the same memory, one at a time.

Ring, staging, arena and scratch are as large as one shape needs them. Weights that stay lie in one place
for all shapes that have them. Sessions of equal graphs are one.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from pipeline.planning.plan import Plan
from pipeline.program.program import Program
from pipeline.program.sessions import Session, opened_by, session_size

#: A span: where its bytes begin in the file, and how many they are there and in memory.
_Stored = tuple[int, int, int]


def together(programs: Sequence[Program], plans: Sequence[Plan]) -> Plan:
    """Return the plan of the first of ``programs``, with those of the others; ``plans``: of each alone.

    Nothing may be read ahead in one of them: the ring may be that of another shape then.
    """
    moved, end = _side_by_side(programs, plans)
    sessions: set[tuple[object, ...]] = set()
    planned = []
    for program, plan in zip(programs, moved, strict=True):
        n_bytes = plan.session_bytes - _shared_session_bytes(program, plan, sessions)
        planned.append(replace(plan, resident_bytes=end, session_bytes=n_bytes))
    return replace(planned[0], others=tuple(planned[1:]))


def _side_by_side(programs: Sequence[Program], plans: Sequence[Plan]) -> tuple[list[Plan], int]:
    """Return ``plans`` with weights that stay where all have room, and the bytes that these take.

    Spans that follow each other in one shape do so in memory; in another shape they may be apart.
    """
    buffers = [list(plan.buffers) for plan in plans]
    stored = [
        (shape, index, spans)
        for shape, (program, plan) in enumerate(zip(programs, plans, strict=True))
        for index, spans in _stored_in(program, plan).items()
    ]
    offsets: dict[_Stored, int] = {}
    end = 0
    for shape, index, spans in sorted(stored, key=lambda item: -len(item[2])):
        buffer = buffers[shape][index]
        starts = list(accumulate((length for _, _, length in spans), initial=0))
        first = offsets.get(spans[0], end)
        expected = [first + start for start in starts[:-1]]
        if [offsets.get(span) for span in spans] != expected:
            first, end = end, end + buffer.n_bytes
            for span, start in zip(spans, starts, strict=False):
                offsets.setdefault(span, first + start)
        buffers[shape][index] = buffer._replace(offset=first)
    return [
        replace(plan, buffers=tuple(changed)) for plan, changed in zip(plans, buffers, strict=True)
    ], end


def _stored_in(program: Program, plan: Plan) -> dict[int, list[_Stored]]:
    """Return what lies in each buffer of weights that stay, in order, by the number of the buffer."""
    stored: dict[int, dict[int, _Stored]] = defaultdict(dict)
    for index in plan.resident:
        location, span = plan.spans[index], program.spans[index]
        assert location is not None
        record = span.file_offset, span.file_length, span.length
        stored[location.buffer][location.offset] = record
    return {index: [spans[start] for start in sorted(spans)] for index, spans in stored.items()}


def _shared_session_bytes(program: Program, plan: Plan, others: set[tuple[object, ...]]) -> int:
    """Return what those sessions of ``plan`` take that are among ``others``; all are from now on."""
    n_bytes = 0
    for session in opened_by(program, plan.steps, plan.runs).sessions:
        key = _key(program, session)
        n_bytes += session_size(program, session) if key in others else 0
        others.add(key)
    return n_bytes


def _key(program: Program, session: Session) -> tuple[object, ...]:
    """Return what is the same of the same session of another shape: where its graphs lie in pieces.bin.

    Chains are numbered in each shape, so that those of two are never the same here.
    """
    graphs = program.graphs
    return tuple(
        (graphs[node].offset, graphs[node].length) if isinstance(node, int) else (id(program), node)
        for node in session
    )
