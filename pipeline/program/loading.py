"""Which rows from outside of regions are loaded once, before others are written where they lie.

Two reasons: a value of the region lies over them in the manifest, as a residual sum over what it adds, and
some would be overwritten before they are read; or nobody reads them afterwards, so a value of the same form
may be written over them, which mostly saves memory. Rows that later phases need are kept.

Says the same to whoever plans one region exactly and to sketches of many.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.program.many_rows import NEVER, MadeRows, Numbers, WantedRows, Which
from pipeline.program.row_network import RowNetwork


@dataclass(frozen=True)
class Written:
    """Operator ``operator`` writes ``value`` where it lies whole, up to row ``ends`` in each phase."""

    value: int
    operator: int
    ends: Numbers


@dataclass(frozen=True)
class LoadedRows:
    """Rows ``made`` of ``value`` are loaded before ``operator`` runs, in the regions ``which``.

    ``new``: what is written over them to save memory; None: what the manifest says.
    """

    value: int
    operator: int
    made: MadeRows
    which: Which
    new: int | None = None


def needed_loadings(
    network: RowNetwork, reads: Mapping[int, Sequence[WantedRows]], writes: Sequence[Written]
) -> Iterator[LoadedRows]:
    """Yield what must be loaded, since it would be overwritten before it is read.

    ``reads``: who reads each value of outside where it lies whole. ``writes``: what is read outside.
    """
    for value, readers in reads.items():
        over = network.memory.overlapping(value)
        found = _needed(network, value, readers, [item for item in writes if item.value in over])
        if found is not None:
            yield found


def _needed(
    network: RowNetwork, value: int, readers: Sequence[WantedRows], writes: Sequence[Written]
) -> LoadedRows | None:
    """Return how ``value`` is loaded where it would be overwritten before it is read."""
    if not writes:
        return None
    height = network.values[value].height
    ends = _read_ends(readers, height)
    loaded, which = ends, np.zeros(len(ends), bool)
    for writing in writes:
        written = writing.ends
        if not network.memory.alike(value, writing.value):
            written = np.where(written > 0, NEVER, 0)  # any row of it may lie over any of these
        loaded = np.maximum(loaded, np.minimum(written, ends[:, -1:]))
        for reader in readers:
            before = written
            if (
                writing.operator >= reader.operator
            ):  # it writes after this one has read, in each phase
                before = np.concatenate(
                    [np.zeros((len(ends), 1), np.int64), written[:, :-1]], axis=1
                )
            which |= (reader.within(height)[0] < before).any(axis=1)
    first = min([item.operator for item in readers] + [item.operator for item in writes])
    return LoadedRows(value, first, MadeRows(loaded), which) if which.any() else None


def saving_loadings(
    network: RowNetwork,
    pieces: range,
    reads: Mapping[int, Sequence[WantedRows]],
    writes: Sequence[Written],
) -> Iterator[LoadedRows]:
    """Yield what may be loaded, so that something is written over it which nobody reads after ``pieces``.

    Arguments are those of ``needed_loadings``. Nothing of what that yields is among these.
    """
    alone = network.alone
    free = sorted((item for item in writes if item.value in alone), key=lambda item: item.operator)
    taken = {item.value: np.zeros(len(item.ends), bool) for item in free}
    for old in network.last_read(reads, pieces) if free else ():
        ends = _read_ends(reads[old], network.values[old].height)
        first = min(reader.operator for reader in reads[old])
        left = np.ones(len(ends), bool)
        for writing in free:
            if writing.operator < first or not network.same_form(old, writing.value):
                continue
            which = left & ~taken[writing.value] & (writing.ends <= ends).all(axis=1)
            if which.any():
                left &= ~which
                taken[writing.value] |= which
                yield LoadedRows(old, first, MadeRows(ends), which, writing.value)


def _read_ends(readers: Sequence[WantedRows], height: int) -> Numbers:
    """Return up to which row anybody has read at the end of each phase."""
    ends = np.max([reader.within(height)[1] for reader in readers], axis=0)
    most: Numbers = np.maximum.accumulate(ends, axis=1)
    return most
