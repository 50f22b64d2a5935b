"""Which weights to keep in memory where reads are the bottleneck.

What counts is the balance so far: the time of kernels up to a point against the bytes to be read up to
it, less what the ring holds. The critical path of a sweep says where that balance is negative: reads on
it delay the answer, others do not.
"""

from dataclasses import replace

from pipeline.planning.draft import Draft, Drafts
from pipeline.planning.plan import Choice
from pipeline.planning.units import Unit
from pipeline.timing.timeline import Timeline

# Weights are kept in so many portions; after each the critical path is another one.
_PORTIONS = 6


def critical_reads(draft: Draft, line: Timeline) -> list[int]:
    """Return the reads that the delay waited for, from last to first.

    Walks back from the last end: what started when something else ended waited for that. Of operations that
    take no time several end at once: each step goes to an earlier one, so the walk ends.
    """
    path: list[int] = []
    groups = len(draft.groups)
    starts_of_reads = line.starts[0]
    released_by = {end: kernel for kernel, end in enumerate(line.ends[-1])}
    read_of = dict(zip(line.ends[0], range(len(line.ends[0])), strict=True))
    # What kernels wait for: reads, or their copies, which have the same numbers.
    brought = dict(zip(line.ends[-2], range(len(line.ends[-2])), strict=True))
    kernel = len(line.starts[-1]) - 1
    while kernel >= 0:
        start = line.starts[-1][kernel]
        if kernel and line.ends[-1][kernel - 1] == start:
            kernel -= 1
            continue
        read = brought.get(start)
        while read is not None:
            if read < groups:
                path.append(read)
            start = starts_of_reads[read]
            if start in released_by:
                break
            before = read_of.get(start) if start > 0 else None
            read = before if before is not None and before < read else None
        kernel = min(released_by.get(start, -1), kernel - 1) if read is not None else -1
    return path


def keep_critical(drafts: Drafts, choice: Choice, n_bytes: int) -> Choice:
    """Return ``choice`` with up to ``n_bytes`` more kept, those on the critical path first.

    Kernels as the bottleneck leave nothing on it: then the last weights are kept, which makes reads fewer.
    """
    portion = -(-n_bytes // _PORTIONS)
    while n_bytes > 0:
        draft = drafts.draft(choice)
        reads = critical_reads(draft, draft.idle) or range(len(draft.groups) - 1, -1, -1)
        candidates = [
            unit
            for read in reads
            for unit in reversed(
                draft.units[draft.groups[read].first_span : draft.groups[read].end_span]
            )
        ]
        taken = _take(candidates, min(portion, n_bytes)) or _take(candidates, n_bytes)
        if not taken:
            break
        spans = [span for unit in taken for span in unit.spans]
        n_bytes -= drafts.same.n_bytes(spans)
        choice = replace(choice, resident=drafts.same.with_same({*choice.resident, *spans}))
    return choice


def _take(units: list[Unit], n_bytes: int) -> list[Unit]:
    """Return the first of ``units`` that fit into ``n_bytes``."""
    taken = []
    for unit in units:
        if unit.length > n_bytes:
            break
        taken.append(unit)
        n_bytes -= unit.length
    return taken
