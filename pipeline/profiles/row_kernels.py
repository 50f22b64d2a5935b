"""What a profile says of row operators: times of some numbers of rows, of tiles, and of copies.

A tile as wide as the network takes what its rows take, so of tiles only narrow ones are measured: those
between are interpolated in rows and in columns.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from models.packs.manifest import Manifest
from models.packs.records.rows import RowOperator, RowValue
from pipeline.profiles.interpolation import interpolated
from pipeline.program.channels.groups import bottleneck_of
from pipeline.program.regions import Region, RegionPlan
from pipeline.program.row_network import RowNetwork

#: Numbers of rows that are measured; a smaller output has fewer.
MEASURED_ROWS = (1, 4, 16, 64)
#: Numbers of rows of tiles that are measured, and which part of the columns these have.
MEASURED_TILE_ROWS, _NARROW = (2, 16), 4
#: Sizes of copies that are measured, bytes, and in how many runs of bytes that lie side by side.
MEASURED_COPIES, COPIED_RUNS = (1 << 10, 32 << 10, 512 << 10), 16
#: A copy of as many bytes in shorter runs, as columns are: what each run costs.
MANY_RUNS, MANY_RUNS_BYTES = 256, 32 << 10
MANY_RUNS_KEY = f"tiles copied:{MANY_RUNS_BYTES}/{MANY_RUNS}"

# Of what is known of one operator.
_OPERATOR_KEY = re.compile(r"([a-z]+) (\d+)(:\w+)?")
Kernel = TypeVar("Kernel")


def row_key(operator: int, rows: int) -> str:
    """Return the key of a row operator that makes ``rows`` rows."""
    return f"rows {operator}:{rows}"


def renumbered(kernels: Mapping[str, Kernel], operators: Sequence[int]) -> dict[str, Kernel]:
    """Return ``kernels`` for a network of some row operators only, which are counted anew."""
    places = {operator: place for place, operator in enumerate(operators)}
    found = {}
    for key, item in kernels.items():
        own = _OPERATOR_KEY.fullmatch(key)
        if own is None:
            found[key] = item
        elif int(own[2]) in places:
            found[f"{own[1]} {places[int(own[2])]}{own[3] or ''}"] = item
    return found


def first_key(operator: int) -> str:
    """Return the key of what the first call of a row operator in a sweep takes beside its time."""
    return f"first {operator}"


def tile_key(operator: int, rows: int, columns: int) -> str:
    """Return the key of a row operator that makes ``columns`` columns of ``rows`` rows."""
    return f"tiles {operator}:{rows}x{columns}"


def copy_key(n_bytes: int) -> str:
    """Return the key of a copy of rows."""
    return f"rows copied:{n_bytes}"


def group_key(manifest: Manifest, region: Region) -> str:
    """Return the key of a bottleneck in groups of channels, the same in partitions, which count anew."""
    item = bottleneck_of(manifest, region)
    return f"channels into {item.output}:{region.channels}x{region.rows}"


def measured_rows(value: RowValue, operator: RowOperator) -> list[int]:
    """Return the numbers of rows of its output ``value`` at which an operator is measured."""
    return _lines(value, operator, MEASURED_ROWS)


def measured_tiles(value: RowValue, operator: RowOperator) -> list[tuple[int, int]]:
    """Return the rows and columns of the tiles of ``value`` at which an operator is measured.

    None of one that makes none, or whose narrow tiles are as wide as its rows.
    """
    width = value.shape[3]
    _, unit = operator.units
    columns = -(-width // (_NARROW * unit)) * unit
    if operator.tile_graph is None or columns >= width:
        return []
    return [(rows, columns) for rows in _lines(value, operator, MEASURED_TILE_ROWS)]


def _lines(value: RowValue, operator: RowOperator, numbers: Sequence[int]) -> list[int]:
    """Return ``numbers`` of rows as the operator can make them."""
    unit, _ = operator.units
    return sorted({min(-(-rows // unit) * unit, value.height) for rows in numbers})


def row_keys(network: RowNetwork) -> Iterator[str]:
    """Yield the keys of everything that regions of ``network`` do."""
    for number, item in enumerate(network.operators):
        for rows in measured_rows(network.values[item.output], item):
            yield row_key(number, rows)
    if network.operators:
        yield from map(copy_key, MEASURED_COPIES)


def tile_keys(network: RowNetwork) -> Iterator[str]:
    """Yield the keys of what tiles of ``network`` do beside that; none where nothing runs on tiles."""
    keys = [
        tile_key(number, rows, columns)
        for number, item in enumerate(network.operators)
        for rows, columns in measured_tiles(network.values[item.output], item)
    ]
    yield from keys
    if keys:
        yield MANY_RUNS_KEY


@dataclass(frozen=True)
class MeasuredRows:
    """The times of a profile for ``network``: ``seconds`` by key.

    ``first``: of what only the first call of an operator in a sweep takes. ``tiles``: whether it knows
    tiles; else they take what rows of as many elements do. ``groups``: of bottlenecks, by key.
    """

    seconds: Callable[[str], float]
    network: RowNetwork
    first: Callable[[int], float] = lambda operator: 0.0
    tiles: bool = False
    groups: Callable[[str], float] = lambda key: 0.0

    def bottleneck(self, plan: RegionPlan) -> float:
        """Return what all of a bottleneck in groups of channels takes."""
        return self.groups(group_key(self.network.manifest, plan.region))

    def call(self, operator: int, rows: int, columns: int | None = None) -> float:
        """Return what row operator ``operator`` takes for ``rows`` rows of its output.

        ``columns``: so many of each row, as a tile; None: whole rows.
        """
        key = (operator, rows, columns)
        if key not in self._calls:
            self._calls[key] = (
                interpolated(self._table(operator), rows)
                if columns is None
                else self._tile(operator, rows, columns)
            )
        return self._calls[key]

    def _tile(self, operator: int, rows: int, columns: int) -> float:
        width = self.network.values[self.network.operators[operator].output].shape[3]
        if not self.tiles:
            return self.call(operator, math.ceil(rows * columns / width))
        by_columns = {
            narrow: interpolated(table, rows)
            for narrow, table in self._narrow_tables(operator).items()
        }
        return interpolated({**by_columns, width: self.call(operator, rows)}, columns)

    def _table(self, operator: int) -> dict[int, float]:
        if operator not in self._tables:
            item = self.network.operators[operator]
            measured = measured_rows(self.network.values[item.output], item)
            self._tables[operator] = {
                rows: self.seconds(row_key(operator, rows)) for rows in measured
            }
        return self._tables[operator]

    def _narrow_tables(self, operator: int) -> dict[int, dict[int, float]]:
        """Return the times of measured tiles by columns and rows."""
        if operator not in self._narrow:
            item = self.network.operators[operator]
            tables: dict[int, dict[int, float]] = {}
            for rows, columns in measured_tiles(self.network.values[item.output], item):
                seconds = self.seconds(tile_key(operator, rows, columns))
                tables.setdefault(columns, {})[rows] = seconds
            self._narrow[operator] = tables
        return self._narrow[operator]

    def move(self, n_bytes: int, runs: int = 0) -> float:
        """Return what copying ``n_bytes`` takes, in ``runs`` that lie side by side; 0: as rows do."""
        more = max(runs - COPIED_RUNS, 0) if self.tiles else 0
        return interpolated(self._copies, n_bytes) + (more * self._run_seconds if more else 0.0)

    @cached_property
    def _run_seconds(self) -> float:
        """What each run costs beside its bytes."""
        more = self.seconds(MANY_RUNS_KEY) - self.move(MANY_RUNS_BYTES)
        return max(more, 0.0) / (MANY_RUNS - COPIED_RUNS)

    @cached_property
    def _tables(self) -> dict[int, dict[int, float]]:
        return {}

    @cached_property
    def _narrow(self) -> dict[int, dict[int, dict[int, float]]]:
        return {}

    @cached_property
    def _calls(self) -> dict[tuple[int, int, int | None], float]:
        return {}

    @cached_property
    def _copies(self) -> dict[int, float]:
        return {n_bytes: self.seconds(copy_key(n_bytes)) for n_bytes in MEASURED_COPIES}
