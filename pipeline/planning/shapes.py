"""One plan of a network in several shapes, which run in the same memory, one at a time.

Ring, staging, arena and scratch are as large as one shape needs them. Weights that stay lie in one place
for all shapes that have them. Sessions of equal graphs are one.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from pipeline.planning.make import make_plan
from pipeline.planning.plan import Plan
from pipeline.program.program import Program
from pipeline.program.sessions import Session, held_bytes, opened_by

#: The bytes of spans that follow each other in memory, by where each begins in the file and in memory.
_Held = tuple[tuple[int, ...], ...]


def together(programs: Sequence[Program], plans: Sequence[Plan]) -> Plan:
    """Return the plan of the first of ``programs``, with those of the others; ``plans``: of each alone."""
    quiet = [without_ahead(*pair) for pair in zip(programs, plans, strict=True)]
    places: dict[_Held, int] = {}
    end = 0
    moved = []
    for program, plan in zip(programs, quiet, strict=True):
        buffers = list(plan.buffers)
        for index, held in _held(program, plan).items():
            if held not in places:
                places[held] = end
                end += buffers[index].n_bytes
            buffers[index] = buffers[index]._replace(offset=places[held])
        moved.append(replace(plan, buffers=tuple(buffers)))
    sessions: set[tuple[object, ...]] = set()
    planned = []
    for program, plan in zip(programs, moved, strict=True):
        n_bytes = plan.session_bytes - _known_bytes(program, plan, sessions)
        planned.append(replace(plan, resident_bytes=end, session_bytes=n_bytes))
    return replace(planned[0], others=tuple(planned[1:]))


def without_ahead(program: Program, plan: Plan) -> Plan:
    """Return ``plan`` without reads for the next request: the ring may be that of another shape then."""
    if len(plan.stages[0]) == len(plan.reads):
        return plan
    choice = replace(plan.choice, ahead="never")
    return make_plan(program, plan.architecture, choice=choice)


def _held(program: Program, plan: Plan) -> dict[int, _Held]:
    """Return what lies in each buffer of weights that stay, by the number of the buffer."""
    spans: dict[int, set[tuple[int, ...]]] = defaultdict(set)
    for span in plan.resident:
        location, record = plan.spans[span], program.spans[span]
        assert location is not None
        spans[location.buffer].add((location.offset, record.file_offset, record.file_length))
    return {index: tuple(sorted(held)) for index, held in spans.items()}


def _known_bytes(program: Program, plan: Plan, known: set[tuple[object, ...]]) -> int:
    """Return what those sessions of ``plan`` take that are ``known``; the others are known from now on."""
    n_bytes = 0
    for session in opened_by(program, plan.steps, plan.runs).sessions:
        key = _key(program, session)
        n_bytes += held_bytes(program, session) if key in known else 0
        known.add(key)
    return n_bytes


def _key(program: Program, session: Session) -> tuple[object, ...]:
    """Return what is the same of the same session of another shape: where its graphs lie in pieces.bin.

    Chains are numbered in each shape, so that those of two are never the same here.
    """
    graphs = program.graphs
    return tuple(
        (graphs[part].offset, graphs[part].length) if isinstance(part, int) else (id(program), part)
        for part in session
    )
