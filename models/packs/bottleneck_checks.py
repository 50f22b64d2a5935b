"""What a manifest says of bottlenecks must be possible (docs/reference/pack-manifest.md, "Bottlenecks").

After these checks groups of channels read and write no byte outside of strips, row values and weights, and
nothing that was not made before.
"""

import math
from itertools import pairwise
from pathlib import Path

from models.errors import PackError
from models.packs.manifest import Manifest
from models.packs.records.bottlenecks import Bottleneck, GroupInput, GroupOperator
from models.packs.records.pieces import Operand
from models.packs.row_checks import (
    Writers,
    check_range,
    check_weights,
    is_theirs,
    window_fault,
    writers_of,
)

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
    writers = writers_of(manifest)
    pieces = 0
    for number, item in enumerate(manifest.bottlenecks):
        where = f"{path}: bottlenecks.{number}"
        check_range(where, manifest, item.first_piece, item.end_piece)
        pieces += item.end_piece - item.first_piece
        if pieces > _MOST_OVER * len(manifest.pieces):
            raise PackError(
                f"{where}: {pieces} pieces in all, of {len(manifest.pieces)} in the pack"
            )
        _check_sizes(where, item, manifest.target.block)
        _check_result(where, manifest, item, writers)
        for position, operator in enumerate(item.operators):
            own = f"{where}.operators.{position}"
            _check_operator(own, manifest, item, operator)
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


def _check_result(where: str, manifest: Manifest, item: Bottleneck, writers: Writers) -> None:
    kinds = [operator.kind for operator in item.operators]
    if len(kinds) < 2 or kinds.count("sum") != 1 or kinds[-1] != "sum" or "each" not in kinds:
        raise PackError(f"{where}.operators: {kinds} add nothing up")
    if item.output >= len(manifest.row_values):
        raise PackError(f"{where}.output: {item.output} is out of range")
    output = manifest.row_values[item.output]
    whole = manifest.values[output.value].n_bytes == output.n_bytes
    pieces = range(item.first_piece, item.end_piece)
    if output.parts or not whole or not is_theirs(writers, output.value, pieces):
        raise PackError(f"{where}.output: its pieces do not write value {output.value}")
    if output.shape != item.operators[-1].shape:
        raise PackError(f"{where}.output: {list(output.shape)} is not what is added up")


def _check_operator(
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

    def check(self, writers: Writers) -> None:
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

    def _check_row_value(self, number: int, writers: Writers) -> None:
        if number >= len(self._manifest.row_values):
            raise PackError(f"{self._where}.row_value: {number} is out of range")
        value = self._manifest.row_values[number]
        held = self._manifest.values[value.value]
        pieces = range(self._item.first_piece, self._item.end_piece)
        if held.n_bytes != value.n_bytes or not writers.get(value.value, set()).isdisjoint(pieces):
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
        fault = window_fault(self._taken.window, height, self._operator.shape[2])
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
