"""Rows of tables, read while a request runs: those that it needs, in waves through a small buffer.

Reads go through the pool as those of weights do, and are compared with the checksums of their pages each
time: which pages come is another matter in each pass. Other passes compute while this one waits for them.

Invariant: nothing is in flight when a lookup ends, also by an error; of a table nothing is read before all
indices of the request are known to be rows of it.
"""

import queue
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loader.errors import LoaderError
from loader.pool.jobs import PoolClient, ReadJob
from loader.pool.order import Urgency
from loader.pool.pool import ReadPool
from loader.readers.interface import Range, Reader
from models.packs.records.pieces import PAGE_BYTES
from pipeline.devices.base import Launch
from pipeline.execution import deadlines
from pipeline.execution.baton import FREE, ComputeClaim
from pipeline.execution.errors import DrainError, InputError
from pipeline.program.kernels import LOOKUP_DEPTH, TableLookup
from pipeline.program.program import PreparedPiece, Program, made_at

# What a request may ask for.


class Table(NamedTuple):
    """``rows`` that indices say, of the layer ``layer``; ``named``: what messages call the indices."""

    rows: int
    layer: str
    named: str

    def check(self, indices: NDArray[Any]) -> NDArray[np.int64]:
        """Return the rows that ``indices``, int32 or int64, say, flat; -1 is the last one, as in ONNX.

        Raises:
            InputError: one is no row.
        """
        flat = indices.reshape(-1).astype(np.int64)
        outside = (flat < -self.rows) | (flat >= self.rows)
        if outside.any():
            first = int(outside.argmax())
            where = [int(index) for index in np.unravel_index(first, indices.shape)]
            raise InputError(
                f"{self.named}: {int(flat[first])} at {where} is no row of layer {self.layer!r}, whose "
                f"table has {self.rows} (from {-self.rows} to {self.rows - 1})"
            )
        flat[flat < 0] += self.rows
        return flat


def tables_of(program: Program) -> dict[int, Table]:
    """Return the tables of ``program`` of which rows can be read, by span."""
    layers, values = program.layers_by_place(), program.values
    tables = {}
    for piece in program.own_pieces:
        if isinstance(piece.kernel, TableLookup):
            layer = layers.get(made_at(piece))
            indices = piece.inputs[0].index
            ports = source_inputs(program, indices)
            named = f"input {ports[0]!r}" if len(ports) == 1 else f"tensor {values[indices].name!r}"
            name = "a table" if layer is None else layer.name
            tables[piece.kernel.span] = Table(piece.kernel.rows, name, named)
    return tables


def checked_inputs(program: Program) -> dict[str, Table]:
    """Return the inputs of ``program`` that are indices of tables as they come, by name."""
    ports = {(port.value, port.dtype, port.shape): port.name for port in program.inputs}
    tables, checked = tables_of(program), dict[str, Table]()
    for piece in program.own_pieces:
        if isinstance(piece.kernel, TableLookup):
            indices = piece.inputs[0]
            name = ports.get((indices.index, indices.dtype, indices.shape))
            table = tables[piece.kernel.span]
            if name is not None and (name not in checked or table.rows < checked[name].rows):
                checked[name] = table
    return checked


def source_inputs(program: Program, value: int) -> list[str]:
    """Return the inputs that ``value`` is computed of."""
    producers: dict[int, list[PreparedPiece]] = {}
    for piece in program.own_pieces:
        for operand in piece.outputs:
            producers.setdefault(operand.index, []).append(piece)
    left, sources = [value], {value}
    while left:
        for piece in producers.get(left.pop(), ()):
            read = {operand.index for operand in piece.inputs if operand.kind == "value"}
            left.extend(read - sources)
            sources |= read
    return [port.name for port in program.inputs if port.value in sources]


# What is read at once.


class Wave(NamedTuple):
    """``pages`` that come to a buffer one after the other, ascending, and the rows that are in them.

    ``rows``: which of the rows in question each is, and where in the buffer it begins, in bytes.
    """

    pages: list[int]
    rows: list[tuple[int, int]]


def waves(rows: Sequence[int], row_bytes: int, max_pages: int) -> Iterator[Wave]:
    """Yield the pages that have ``rows``, ascending, of ``row_bytes`` each, ``max_pages`` at a time.

    Each row comes once, however often it is there.
    """
    pages: list[int] = []
    inside: list[tuple[int, int]] = []
    for index, row in enumerate(rows):
        start = row * row_bytes
        first, last = start // PAGE_BYTES, (start + row_bytes - 1) // PAGE_BYTES
        more = range(max(first, pages[-1] + 1) if pages else first, last + 1)
        if len(pages) + len(more) > max_pages:
            yield Wave(pages, inside)
            pages, inside, more = [], [], range(first, last + 1)
        pages.extend(more)
        begin = len(pages) - (last + 1 - first)
        inside.append((index, begin * PAGE_BYTES + start - first * PAGE_BYTES))
    if pages:
        yield Wave(pages, inside)


# Reading them.


class TableReads:
    """Reads rows of the tables of ``program`` from ``reader``, through ``pool``, until it is closed.

    ``deadline``, ``cancelled``, ``claim``: of the inference that runs. ``n_bytes``: read so far.
    """

    def __init__(self, program: Program, pool: ReadPool, reader: Reader) -> None:
        self.deadline: float | None = None
        self.cancelled: Callable[[], bool] = lambda: False
        self.claim: ComputeClaim = FREE
        self.n_bytes = 0
        self._program = program
        self._tables = tables_of(program)
        self._pool = pool
        self._reader = reader
        self._client: PoolClient | None = None
        if self._tables:
            self._client = pool.client(program.name, LOOKUP_DEPTH)

    def bind(self, lookup: TableLookup, inputs: Sequence[Any], outputs: Sequence[Any]) -> Launch:
        """Return what makes the rows of ``lookup``: of indices and checksums, in memory of the host.

        The launch raises InputError where an index is no row of the table, else as a wait for weights.
        """
        indices, checksums = inputs
        (output,) = outputs
        return partial(self._copy_rows, lookup, indices, checksums, output)

    def close(self) -> None:
        """Leave the pool; nothing is in flight."""
        if self._client is not None:
            self._pool.forget(self._client)
            self._client = None

    def _copy_rows(
        self,
        lookup: TableLookup,
        indices: NDArray[Any],
        checksums: NDArray[np.uint64],
        output: NDArray[Any],
    ) -> None:
        rows = self._tables[lookup.span].check(indices)
        order = np.argsort(rows, kind="stable")
        # Touched page by page as it is needed; what hangs keeps it until it ends.
        memory = np.empty(lookup.buffer_bytes + PAGE_BYTES, np.uint8)
        buffer = memory[-memory.ctypes.data % PAGE_BYTES :][: lookup.buffer_bytes]
        target = output.reshape(-1).view(np.uint8).reshape(len(rows), lookup.row_bytes)
        max_pages = lookup.buffer_bytes // PAGE_BYTES
        for wave in waves(rows[order].tolist(), lookup.row_bytes, max_pages):
            self._read(lookup, wave.pages, checksums, buffer)
            for index, start in wave.rows:
                target[order[index]] = buffer[start : start + lookup.row_bytes]

    def _read(
        self,
        lookup: TableLookup,
        pages: Sequence[int],
        checksums: NDArray[np.uint64],
        buffer: NDArray[np.uint8],
    ) -> None:
        """Read ``pages`` of a table to ``buffer``.

        Raises:
            LoaderError: one cannot be read, or is damaged. DrainError: a read never ended.
            CancelledError, DeadlineError: nobody waits for the answer any more.
        """
        start = self._program.spans[lookup.span].file_offset
        ranges = [
            Range(start + page * PAGE_BYTES, PAGE_BYTES, f"{int(checksums[page]):016x}")
            for page in pages
        ]
        share = -(-len(ranges) // LOOKUP_DEPTH)
        self.claim.give()
        self._wait_for(
            [
                (ranges[first : first + share], buffer[first * PAGE_BYTES :][: share * PAGE_BYTES])
                for first in range(0, len(ranges), share)
            ]
        )
        self.n_bytes += len(pages) * PAGE_BYTES
        deadlines.check_limits(self.deadline, self.cancelled)
        self.claim.hold(self.deadline, self.cancelled)

    def _wait_for(self, reads: Sequence[tuple[list[Range], NDArray[np.uint8]]]) -> None:
        """Start ``reads``, and wait until all that were started have ended. Raises as ``_read``."""
        results: queue.SimpleQueue[LoaderError | None] = queue.SimpleQueue()
        error: Exception | None = None
        started = 0
        try:
            for ranges, target in reads:
                self._pool.submit(
                    ReadJob(
                        self._reader,
                        tuple(ranges),
                        target[: len(ranges) * PAGE_BYTES].data,
                        True,
                        lambda failed, seconds: results.put(failed),
                        self._client,
                        Urgency.WAITED_FOR,
                        self.deadline,
                    )
                )
                started += 1
        except Exception as exc:  # noqa: BLE001  raised below: others may still be writing
            error = exc
        left = started
        try:
            while left:
                error = _next(results, self._reader.name) or error
                left -= 1
        except DrainError:
            raise
        except BaseException:  # an interrupt: what was started writes to memory that goes
            for _ in range(left):
                _next(results, self._reader.name)
            raise
        if error is not None:
            raise error


def _next(results: "queue.SimpleQueue[LoaderError | None]", source: str) -> LoaderError | None:
    """Return what became of the next read that ends.

    Raises:
        DrainError: none ended for as long as a disk may take.
    """
    try:
        return results.get(timeout=deadlines.DRAIN_SECONDS)
    except queue.Empty:
        raise DrainError(
            f"{source}: rows of a table have not come in {deadlines.DRAIN_SECONDS:.0f} s"
        ) from None
