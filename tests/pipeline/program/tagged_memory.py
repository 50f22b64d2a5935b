"""Runs a plan on tags instead of numbers: every row of every plane has one, and each read is checked.

It follows what a program means and what actions do, and nothing of how regions are planned: which rows an
operator needs is worked out here again, row by row.
"""

import numpy as np
from numpy.typing import NDArray

from models.packs.records.pieces import Operand
from models.packs.records.row_parts import Outside, RowInput, RowOperator
from pipeline.planning.plan import Plan
from pipeline.program.lives import taken_by_rows
from pipeline.program.program import PreparedPiece, Program
from pipeline.program.region_plan import Action, Area, AreaCopy, Fill, GraphCall
from pipeline.program.steps import Phase, RegionSteps

Tags = NDArray[np.int64]
_ELEMENT = 4
_PLANES, _ROWS = 1 << 10, 1 << 10
_GARBAGE, _ZERO, _LOWEST, _WEIGHTS = -1, -2, -3, -4


class WrongError(AssertionError):
    """Something was read that is not there, or written where it must not be."""


class TaggedMemory:
    """The arena of ``plan``, and inputs of which only rows are taken."""

    def __init__(self, program: Program, plan: Plan) -> None:
        self._program = program
        self._plan = plan
        self._arena: Tags = np.full(plan.arena_bytes // _ELEMENT, _GARBAGE, np.int64)
        self._by_value = {held.value: n for n, held in enumerate(program.row_values)}
        self._views = {
            held.parent: number
            for number, held in enumerate(program.values)
            if held.parent is not None and number in self._by_value
        }
        self._taken = taken_by_rows(program, plan.steps)
        self._made: dict[tuple[RegionSteps, int], int] = {}

    def run(self) -> None:
        """Run all steps, and check the outputs.

        Raises:
            WrongError: a step would compute with something else than it should.
        """
        for port in self._program.inputs:
            if port.value not in self._taken:
                self._at(port.value, port.n_bytes)[:] = self._content(port.value)
        for number, step in enumerate(self._plan.steps):
            self._weights(number)
            if isinstance(step, PreparedPiece):
                self._piece(f"step {number}", step)
                continue
            for action in step.region.plan.phases[step.number]:
                self._act(f"step {number}, {action}", step.region, action)
            if step.number == len(step.region.plan.phases) - 1:
                self._finished(step)
        for port in self._program.outputs:
            _check(
                f"output {port.name}",
                self._at(port.value, port.n_bytes),
                self._content(port.value),
            )

    def _weights(self, number: int) -> None:
        """Bring weights into the arena as early as the schedule may, and check those that are needed."""
        plan = self._plan
        for read, (buffer, users) in enumerate(zip(plan.weights, plan.users, strict=True)):
            if buffer.space != "arena":
                continue
            memory = self._bytes(buffer.offset, buffer.n_bytes)
            if number == plan.stages[0].after[read][-1]:
                memory[:] = _WEIGHTS
            if number in users and (memory != _WEIGHTS).any():
                raise WrongError(f"step {number}: its weights were overwritten in the arena")

    # What should be where

    def _content(self, value: int) -> Tags:
        """Return the tags of a value as it lies whole; a view has those of what it shows."""
        while value not in self._by_value:
            parent = self._program.values[value].parent
            value = self._views[value] if parent is None else parent
        row_value = self._by_value[value]
        height = self._program.row_values[row_value].height
        return self._rows(row_value, range(height))

    def _rows(self, row_value: int, rows: range, fill: Outside = "zero") -> Tags:
        """Return the tags of ``rows``, plane by plane; of those outside of it that of padding."""
        held = self._program.row_values[row_value]
        last = held.height - 1
        tags = [
            self._tag(row_value, plane, min(max(row, 0), last))
            if fill == "edge" or 0 <= row <= last
            else (_ZERO if fill == "zero" else _LOWEST)
            for plane in range(held.planes)
            for row in rows
        ]
        return np.repeat(np.array(tags, np.int64), held.row_bytes // _ELEMENT)

    def _tag(self, row_value: int, plane: int, row: int) -> int:
        """Return the tag of a row: that of the value which an operator or a piece makes."""
        parts = self._program.row_values[row_value].parts
        for part in parts:
            if plane < part.planes:
                return self._tag(part.row_value, part.first_plane + plane, row)
            plane -= part.planes
        return (row_value * _PLANES + plane) * _ROWS + row

    # Memory

    def _at(self, value: int, n_bytes: int, offset: int = 0) -> Tags:
        return self._bytes(self._plan.offset(self._plan.values[value]) + offset, n_bytes)

    def _bytes(self, start: int, n_bytes: int) -> Tags:
        return self._arena[start // _ELEMENT : (start + n_bytes) // _ELEMENT]

    def _operand(self, operand: Operand) -> Tags:
        return self._at(operand.index, operand.n_bytes, operand.offset)

    def _expected(self, operand: Operand) -> Tags:
        first = operand.offset // _ELEMENT
        return self._content(operand.index)[first : first + operand.n_bytes // _ELEMENT]

    def _area(self, region: RegionSteps, area: Area) -> Tags:
        """Return the memory of an area, [planes, elements of its rows]."""
        held = self._program.row_values[area.row_value]
        row = held.row_bytes // _ELEMENT
        plane = area.held_rows * row
        count = (area.first_plane + area.planes) * plane
        if area.strip is not None:
            number = self._plan.line_buffers[region.first_strip + area.strip]
            room = region.plan.strips[area.strip].n_bytes
            if count * _ELEMENT > room:
                raise WrongError(f"{area}: larger than its strip of {room} bytes")
            memory = self._bytes(self._plan.buffers[number].offset, count * _ELEMENT)
        elif held.value in self._taken:
            memory = self._content(held.value)
        else:
            memory = self._at(held.value, count * _ELEMENT)
        planes = memory[:count].reshape(-1, plane)[area.first_plane :]
        return planes[:, area.first_row * row : (area.first_row + area.rows) * row]

    # Steps

    def _piece(self, where: str, piece: PreparedPiece) -> None:
        for operand in piece.inputs:
            _check(
                f"{where}: value {operand.index}", self._operand(operand), self._expected(operand)
            )
        for operand in piece.outputs:
            self._operand(operand)[:] = self._expected(operand)

    def _act(self, where: str, region: RegionSteps, action: Action) -> None:
        match action:
            case AreaCopy(source, target):
                self._write(where, region, target, self._area(region, source).copy())
            case Fill(target, lowest):
                tags = np.full_like(self._area(region, target), _LOWEST if lowest else _ZERO)
                self._write(where, region, target, tags)
            case GraphCall():
                self._call(where, region, action)

    def _write(self, where: str, region: RegionSteps, target: Area, tags: Tags) -> None:
        held = self._program.row_values[target.row_value]
        if target.strip is None and held.value in self._taken:
            raise WrongError(f"{where}: writes to the request")
        memory = self._area(region, target)
        if memory.shape != tags.shape:
            raise WrongError(f"{where}: {tags.shape} into {memory.shape}")
        memory[...] = tags

    def _call(self, where: str, region: RegionSteps, call: GraphCall) -> None:
        operator = self._program.row_operators[call.operator]
        first = self._made.get((region, call.operator), 0)
        rows = range(first, first + call.output.rows)
        height = self._program.row_values[operator.output].height
        if not rows or rows.stop > height:
            raise WrongError(f"{where}: rows {rows} of {height}")
        self._made[region, call.operator] = rows.stop
        written = self._area(region, call.output)
        for number, (taken, area) in enumerate(zip(operator.inputs, call.inputs, strict=True)):
            memory = self._area(region, area)
            if not _contiguous(area) or area.rows != len(_read(taken, rows)):
                raise WrongError(f"{where}: input {number} is no strip of what it needs")
            expected = self._rows(taken.row_value, _read(taken, rows), taken.fill)
            _check(f"{where}: input {number}", memory.reshape(-1), expected)
            self._apart(where, operator, number, memory, written)
        if not _contiguous(call.output):
            raise WrongError(f"{where}: its output is no strip")
        written[...] = self._rows(operator.output, rows).reshape(written.shape)

    @staticmethod
    def _apart(where: str, operator: RowOperator, number: int, read: Tags, written: Tags) -> None:
        """Check that an input is not overwritten while it is read, unless element by element."""
        if not np.shares_memory(read, written):
            return
        start = [memory.__array_interface__["data"][0] for memory in (read, written)]
        if number != operator.in_place or start[0] != start[1] or read.size != written.size:
            raise WrongError(f"{where}: writes over input {number}")

    def _finished(self, phase: Phase) -> None:
        """Check that a region made all rows of what it writes whole, and of its last operator."""
        plan = phase.region.plan
        last = self._program.row_operators[plan.operators[-1]].output
        for number in plan.operators:
            output = self._program.row_operators[number].output
            made = self._made.get((phase.region, number), 0)
            height = self._program.row_values[output].height
            if made < height and output in {*plan.written, last}:
                raise WrongError(f"operator {number} made {made} rows of {height}")


def _contiguous(area: Area) -> bool:
    """Return whether an area is all of a strip, as kernels take it."""
    whole = area.strip is not None and (area.first_plane, area.first_row) == (0, 0)
    return whole and area.rows == area.held_rows


def _read(taken: RowInput, rows: range) -> range:
    """Return the rows that ``rows`` of the output are made of, padding included."""
    window = taken.window
    read: set[int] = set()
    for row in rows:
        if window.factor > 1:
            read.add(row // window.factor)
        else:
            read.update(range(row * window.stride - window.before, _end(taken, row)))
    return range(min(read), max(read) + 1)


def _end(taken: RowInput, row: int) -> int:
    window = taken.window
    return row * window.stride - window.before + (window.kernel - 1) * window.dilation + 1


def _check(where: str, found: Tags, expected: Tags) -> None:
    if found.shape != expected.shape:
        raise WrongError(f"{where}: {found.shape} elements, not {expected.shape}")
    wrong = np.flatnonzero(found != expected)
    if wrong.size:
        at = wrong[0]
        raise WrongError(f"{where}: {_said(found[at])} in place of {_said(expected[at])}")


def _said(tag: np.int64) -> str:
    """Return a tag in words."""
    if tag < 0:
        return {_GARBAGE: "nothing", _ZERO: "zeros", _LOWEST: "lowest", _WEIGHTS: "weights"}[
            int(tag)
        ]
    rest, row = divmod(int(tag), _ROWS)
    value, plane = divmod(rest, _PLANES)
    return f"row {row} of plane {plane} of row value {value}"
