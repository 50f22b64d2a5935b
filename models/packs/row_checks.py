"""What a manifest says of row operators and bottlenecks must be possible (docs/reference/pack-manifest.md).

After these checks a region reads and writes no byte outside of its strips, values and weights, and is
planned in the order of its operators. The planner decides whether a value can be whole where it is read:
inside a piece values are as small as a slice.
"""

import math
from itertools import pairwise
from pathlib import Path

from models.errors import PackError
from models.network.windows import SAME, Window
from models.packs.manifest import Manifest
from models.packs.records.pieces import Operand
from models.packs.records.row_parts import (
    Bottleneck,
    GroupInput,
    GroupOperator,
    RowInput,
    RowOperator,
    RowValue,
)

_DTYPE = "float32"
# No network has as many channels.
_MOST_PARTS = 1 << 16
# Products of two such numbers are counted in 64 bits.
_MOST_UNROLLED = 1 << 31
_Writers = dict[int, set[int]]


def check_rows(path: Path, manifest: Manifest) -> None:
    """Check the row values and row operators of the manifest in ``path``, whose pieces were checked.

    Raises:
        PackError: something in them cannot be; the message names the field.
    """
    writers = _writers_of(manifest)
    for number, value in enumerate(manifest.row_values):
        _check_value(f"{path}: row_values.{number}", manifest, value)
        _check_parts(f"{path}: row_values.{number}", manifest, number, value, writers)
    _check_counts(path, manifest)
    outputs: set[int] = set()
    end = 0
    for number, operator in enumerate(manifest.row_operators):
        where = f"{path}: row_operators.{number}"
        _check_range(where, manifest, operator.first_piece, operator.end_piece)
        before = manifest.row_operators[number - 1] if number else operator
        if _pieces(operator) != _pieces(before) and operator.first_piece < end:
            raise PackError(f"{where}.first_piece: {operator.first_piece}: before {end}")
        end = operator.end_piece
        _check_operator(where, manifest, operator)
        if operator.output in outputs:
            raise PackError(f"{where}.output: {operator.output} is made twice")
        _check_output(where, manifest, operator, writers)
        outputs.add(operator.output)
    _check_order(path, manifest)


def _check_value(where: str, manifest: Manifest, value: RowValue) -> None:
    shape = value.shape
    if value.dtype != _DTYPE or len(shape) != 4 or shape[0] != 1 or min(shape) < 1:
        raise PackError(f"{where}: {value.dtype}{list(shape)} is not {_DTYPE}[1, *, *, *]")
    if shape[1] % value.planes:
        raise PackError(f"{where}.planes: {value.planes} do not divide {shape[1]} channels")
    if value.value >= len(manifest.values):
        raise PackError(f"{where}.value: {value.value} is out of range")
    held = manifest.values[value.value]
    if held.is_loose or held.dtype != _DTYPE or held.n_bytes > value.n_bytes:
        raise PackError(f"{where}.value: {value.value} does not hold it")


def _check_parts(
    where: str, manifest: Manifest, number: int, value: RowValue, writers: _Writers
) -> None:
    """Check that what a value is put together of was there before it, and is like it."""
    pieces = range(value.first_piece, value.end_piece)
    if value.first_piece or value.end_piece:
        _check_range(where, manifest, pieces.start, pieces.stop)
        if not value.parts:
            raise PackError(f"{where}.parts: none, but pieces copy them")
        if not _is_theirs(writers, value.value, pieces):
            raise PackError(f"{where}: its pieces do not write value {value.value}")
    for position, part in enumerate(value.parts):
        field = f"{where}.parts.{position}"
        if part.row_value >= number:
            raise PackError(f"{field}.row_value: {part.row_value} is not one before this")
        source = manifest.row_values[part.row_value]
        if part.first_plane + part.planes > source.planes:
            raise PackError(f"{field}: planes are out of range of {source.planes}")
        if (source.height, source.row_bytes) != (value.height, value.row_bytes):
            raise PackError(f"{field}.row_value: {part.row_value} has other rows")
    planes = sum(part.planes for part in value.parts)
    if value.parts and planes != value.planes:
        raise PackError(f"{where}.parts: {planes} planes, not {value.planes}")


def _check_counts(path: Path, manifest: Manifest) -> None:
    """Check that values are not of values, and these of others, without bound: planners list them all."""
    counts: list[int] = []
    for number, value in enumerate(manifest.row_values):
        n_parts = sum(min(counts[part.row_value], part.planes) for part in value.parts)
        if n_parts > _MOST_PARTS:
            raise PackError(
                f"{path}: row_values.{number}.parts: {n_parts} in all, of {_MOST_PARTS}"
            )
        counts.append(n_parts or 1)


def _check_range(where: str, manifest: Manifest, first: int, end: int) -> None:
    """Check that the pieces [first, end) are some; raises PackError."""
    if not first < end <= len(manifest.pieces):
        raise PackError(f"{where}: pieces [{first}, {end}) are out of range")


def _pieces(operator: RowOperator) -> tuple[int, int]:
    return operator.first_piece, operator.end_piece


def _writers_of(manifest: Manifest) -> _Writers:
    """Return the pieces that write each value; what is only inside a piece is not in it."""
    writers: _Writers = {port.value: set() for port in manifest.inputs}
    for number, piece in enumerate(manifest.pieces):
        for operand in piece.outputs:
            writers.setdefault(operand.index, set()).add(number)
    return writers


def _is_theirs(writers: _Writers, value: int, pieces: range) -> bool:
    """Return whether ``pieces`` write a value, or it is only inside of one."""
    return value not in writers or not writers[value].isdisjoint(pieces)


def _check_operator(where: str, manifest: Manifest, operator: RowOperator) -> None:
    if operator.graph >= len(manifest.graphs):
        raise PackError(f"{where}.graph: {operator.graph} is out of range")
    if not operator.inputs:
        raise PackError(f"{where}.inputs: none")
    for number in (*(item.row_value for item in operator.inputs), operator.output):
        if number >= len(manifest.row_values):
            raise PackError(f"{where}: row value {number} is out of range")
    output = manifest.row_values[operator.output]
    for position, item in enumerate(operator.inputs):
        source = manifest.row_values[item.row_value]
        fault = _window_fault(item.window, source.height, output.height)
        if fault:
            raise PackError(f"{where}.inputs.{position}.window: {fault}")
    for position, operand in enumerate(operator.weights):
        check_weights(f"{where}.weights.{position}", manifest, range(*_pieces(operator)), operand)
    unrolled = operator.unrolled
    if unrolled is not None:
        numbers = unrolled.pixel_bytes, unrolled.filters, unrolled.segments
        if max(numbers) > _MOST_UNROLLED:
            raise PackError(f"{where}.unrolled: {max(numbers)}: more than any kernel unrolls")
    if operator.in_place is not None and not _fits_in_place(manifest, operator):
        raise PackError(f"{where}.in_place: {operator.in_place} is not like its output")


def _window_fault(window: Window, source: int, output: int) -> str:
    """Return why ``window`` does not make ``output`` of so many rows, or is none of an operator."""
    before, behind, reach = window.before, window.behind, window.reach
    if window.factor > 1:
        alone = window == Window(factor=window.factor)
        return "" if alone and window.made(source) == output else f"{output} rows of {source}"
    crops = (reach, window.stride) == (1, 1) and before <= 0
    if before < 0 and not crops:
        return f"a kernel of {reach} rows begins {-before} rows late"
    if before >= reach:
        return f"{before} rows of padding before a kernel of {reach}"
    if window.fitted(source, output) != window:
        return f"{output} rows of {source} with {behind} behind"
    # Else the last is made of padding alone, or another one would fit; of a crop only some lines are read.
    fits = behind <= 0 if crops else -window.stride < behind < reach
    return "" if fits else f"{output} rows of {source}"


def check_weights(where: str, manifest: Manifest, pieces: range, operand: Operand) -> None:
    """Check that weights lie in a span that stays, or in those of ``pieces``, one or several."""
    if operand.kind != "span" or operand.is_loose or operand.index >= len(manifest.spans):
        raise PackError(f"{where}: {operand.kind} {operand.index} is no span")
    own = [manifest.pieces[piece].span for piece in pieces]
    spans = [operand.index]
    if not manifest.spans[operand.index].resident:
        if operand.index not in own:
            raise PackError(f"{where}: span {operand.index} is not one of its pieces'")
        spans = [span for span in own if span is not None and span >= operand.index]
    room = sum(manifest.spans[span].length for span in spans)
    if operand.offset + operand.n_bytes > room:
        raise PackError(
            f"{where}: bytes [{operand.offset}, +{operand.n_bytes}) are outside "
            f"span {operand.index} ({room} bytes)"
        )


def _fits_in_place(manifest: Manifest, operator: RowOperator) -> bool:
    if operator.in_place is None or operator.in_place >= len(operator.inputs):
        return False
    item: RowInput = operator.inputs[operator.in_place]
    source, output = manifest.row_values[item.row_value], manifest.row_values[operator.output]
    return item.window == SAME and math.prod(source.shape) == math.prod(output.shape)


def _check_output(where: str, manifest: Manifest, operator: RowOperator, writers: _Writers) -> None:
    output = manifest.row_values[operator.output]
    if output.parts:
        raise PackError(f"{where}.output: {operator.output} is put together of others")
    if not _is_theirs(writers, output.value, range(*_pieces(operator))):
        raise PackError(f"{where}.output: its pieces do not write value {output.value}")


def _check_order(path: Path, manifest: Manifest) -> None:
    """Check that each operator reads, directly or as parts, only results of operators before it."""
    latest = [-1] * len(manifest.row_values)
    for number, operator in enumerate(manifest.row_operators):
        latest[operator.output] = number
    for number, value in enumerate(manifest.row_values):
        for part in value.parts:
            latest[number] = max(latest[number], latest[part.row_value])
    for number, operator in enumerate(manifest.row_operators):
        for position, item in enumerate(operator.inputs):
            if latest[item.row_value] >= number:
                raise PackError(
                    f"{path}: row_operators.{number}.inputs.{position}.row_value: "
                    f"{item.row_value} is made later"
                )


# What a manifest says of bottlenecks must be possible (docs/reference/pack-manifest.md, "Bottlenecks").
#
# After these checks groups of channels read and write no byte outside of strips, row values and weights,
# and nothing that was not made before.

_EDGES = 4
# Each is a phase of its own, or several.
_MOST_GROUPS = 1 << 14
# Bottlenecks that a piece is in, in the mean of all pieces: planning tries each of them.
_MOST_OVER = 4


def check_bottlenecks(path: Path, manifest: Manifest) -> None:
    """Check the bottlenecks of the manifest in ``path``, whose row values were checked.

    Raises:
        PackError: something in them cannot be; the message names the field.
    """
    if manifest.bottlenecks and manifest.target.capability is not None:
        raise PackError(f"{path}: bottlenecks: a GPU runs whole tensors")
    writers = _writers_of(manifest)
    pieces = 0
    for number, item in enumerate(manifest.bottlenecks):
        where = f"{path}: bottlenecks.{number}"
        _check_range(where, manifest, item.first_piece, item.end_piece)
        pieces += item.end_piece - item.first_piece
        if pieces > _MOST_OVER * len(manifest.pieces):
            raise PackError(
                f"{where}: {pieces} pieces in all, of {len(manifest.pieces)} in the pack"
            )
        _check_sizes(where, item, manifest.target.block)
        _check_result(where, manifest, item, writers)
        for position, operator in enumerate(item.operators):
            own = f"{where}.operators.{position}"
            _check_group_operator(own, manifest, item, operator)
            for place, taken in enumerate(operator.inputs):
                _Input(f"{own}.inputs.{place}", manifest, item, position, taken).check(writers)


def _check_sizes(where: str, item: Bottleneck, block: int) -> None:
    """Check that all channels divide into groups of ``sizes``."""
    sizes = item.sizes
    doubled = all(2 * one == other for one, other in pairwise(sizes))
    if not sizes or sizes[0] % block or not doubled or sizes[-1] >= item.channels:
        raise PackError(f"{where}.sizes: {list(sizes)} of {item.channels} channels")
    if item.channels % sizes[0]:
        raise PackError(f"{where}.channels: {item.channels} do not divide by {sizes[0]}")
    if item.channels > _MOST_GROUPS * sizes[0]:
        raise PackError(f"{where}.channels: {item.channels} make over {_MOST_GROUPS} groups")


def _check_result(where: str, manifest: Manifest, item: Bottleneck, writers: _Writers) -> None:
    kinds = [operator.kind for operator in item.operators]
    if len(kinds) < 2 or kinds.count("sum") != 1 or kinds[-1] != "sum" or "each" not in kinds:
        raise PackError(f"{where}.operators: {kinds} add nothing up")
    if item.output >= len(manifest.row_values):
        raise PackError(f"{where}.output: {item.output} is out of range")
    output = manifest.row_values[item.output]
    whole = manifest.values[output.value].n_bytes == output.n_bytes
    pieces = range(item.first_piece, item.end_piece)
    if output.parts or not whole or not _is_theirs(writers, output.value, pieces):
        raise PackError(f"{where}.output: its pieces do not write value {output.value}")
    if output.shape != item.operators[-1].shape:
        raise PackError(f"{where}.output: {list(output.shape)} is not what is added up")


def _check_group_operator(
    where: str, manifest: Manifest, item: Bottleneck, operator: GroupOperator
) -> None:
    counts = {"each": _EDGES * len(item.sizes), "mean": 1, "once": 1, "sum": 3}
    if len(operator.graphs) != counts[operator.kind]:
        raise PackError(f"{where}.graphs: {len(operator.graphs)}, not {counts[operator.kind]}")
    for graph in operator.graphs:
        if graph >= len(manifest.graphs):
            raise PackError(f"{where}.graphs: {graph} is out of range")
    shape, channels = operator.shape, item.channels
    fits = len(shape) == 4 and shape[0] == 1 and min(shape) > 0
    if operator.kind in ("mean", "once"):
        fits = fits and shape == (1, channels, 1, 1)
    elif operator.kind == "each":
        fits = fits and shape[1] == channels
    if not fits:
        raise PackError(f"{where}.shape: {list(shape)} of {channels} channels")
    axes = [taken.axis for taken in operator.inputs]
    adds = axes[:2] == ["channels", "inputs"] and not any(axes[2:])
    adds = adds and operator.inputs[0].made is not None and operator.inputs[1].weights is not None
    # What runs once begins a pass over all groups: these make what it is made of.
    makes = operator.kind == "each" or any(taken.made is not None for taken in operator.inputs)
    if not axes or not makes or adds != (operator.kind == "sum"):
        raise PackError(f"{where}.inputs: {axes} are not those of {operator.kind!r}")


class _Input:
    """Checks input ``taken`` of operator ``position`` of ``item``."""

    def __init__(
        self, where: str, manifest: Manifest, item: Bottleneck, position: int, taken: GroupInput
    ) -> None:
        self._where = where
        self._manifest = manifest
        self._item = item
        self._position = position
        self._operator = item.operators[position]
        self._taken = taken

    def check(self, writers: _Writers) -> None:
        given = (self._taken.made, self._taken.row_value, self._taken.weights)
        if sum(item is not None for item in given) != 1:
            raise PackError(f"{self._where}: not one of made, row_value and weights")
        if self._taken.made is not None:
            self._check_made(self._taken.made)
        elif self._taken.row_value is not None:
            self._check_row_value(self._taken.row_value, writers)
        elif self._taken.weights is not None:
            self._check_weights(self._taken.weights)

    def _check_made(self, number: int) -> None:
        if number >= self._position:
            raise PackError(f"{self._where}.made: {number} does not run before")
        made = self._item.operators[number]
        kind = self._operator.kind
        axis = {"each": "channels", "mean": None, "once": "factors", "sum": "sum"}[made.kind]
        readers = {"each": ("each", "mean", "sum"), "mean": ("once",), "once": ("each",)}
        if self._taken.axis != axis or kind not in readers.get(made.kind, ()):
            raise PackError(f"{self._where}.axis: {self._taken.axis} of what {made.kind!r} makes")
        if made.kind == "each" and kind in ("each", "sum"):
            self._check_window(made.shape[2])

    def _check_row_value(self, number: int, writers: _Writers) -> None:
        if number >= len(self._manifest.row_values):
            raise PackError(f"{self._where}.row_value: {number} is out of range")
        value = self._manifest.row_values[number]
        whole_value = self._manifest.values[value.value]
        pieces = range(self._item.first_piece, self._item.end_piece)
        if whole_value.n_bytes != value.n_bytes or not writers.get(value.value, set()).isdisjoint(
            pieces
        ):
            raise PackError(f"{self._where}.row_value: {number} is not there before")
        if self._operator.kind == "sum":
            if value.shape != self._operator.shape:
                raise PackError(f"{self._where}.row_value: {list(value.shape)} cannot be added")
            return
        by_channel = self._taken.axis == "channels"
        if self._operator.kind != "each" or self._taken.axis not in ("channels", None):
            raise PackError(f"{self._where}.axis: {self._taken.axis} of a row value")
        if by_channel and value.shape[1] != self._item.channels:
            raise PackError(f"{self._where}.row_value: {value.shape[1]} channels")
        self._check_window(value.height)

    def _check_window(self, height: int) -> None:
        fault = _window_fault(self._taken.window, height, self._operator.shape[2])
        if fault or self._taken.window.factor > 1:
            raise PackError(f"{self._where}.window: {fault or 'rows are repeated'}")

    def _check_weights(self, weights: Operand) -> None:
        pieces = range(self._item.first_piece, self._item.end_piece)
        check_weights(f"{self._where}.weights", self._manifest, pieces, weights)
        if weights.dtype != "float32" or min(weights.shape, default=0) < 1:
            raise PackError(
                f"{self._where}.weights: {weights.dtype}{list(weights.shape)} is not float32"
            )
        if self._taken.axis == "inputs":
            shape = (self._operator.shape[1], self._item.channels, 1, 1)
            fits = weights.shape == shape and shape[0] % self._manifest.target.block == 0
        elif self._taken.axis == "channels":
            axis = next((length for length in weights.shape if length > 1), 1)
            fits = self._operator.kind == "each" and axis == self._item.channels
        else:
            fits = self._taken.axis is None and self._operator.kind in ("once", "sum")
        if not fits or not math.prod(weights.shape):
            raise PackError(
                f"{self._where}.weights: {list(weights.shape)} along {self._taken.axis}"
            )
