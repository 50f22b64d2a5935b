"""What a profile says of row operators: times of some numbers of rows, and of copies."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from models.packs.records.row_parts import RowOperator, RowValue
from pipeline.profiles.interpolation import interpolated
from pipeline.program.cuts import ChannelCut, Region
from pipeline.program.region_plan import RegionPlan
from pipeline.program.row_network import RowNetwork

#: Numbers of rows that are measured; a smaller output has fewer.
MEASURED_ROWS = (1, 4, 16, 64)
#: Sizes of copies that are measured, bytes.
MEASURED_COPIES = (1 << 10, 32 << 10, 512 << 10)


def row_key(operator: int, rows: int) -> str:
    """Return the key of a row operator that makes ``rows`` rows."""
    return f"rows {operator}:{rows}"


def first_key(operator: int) -> str:
    """Return the key of what the first call of a row operator in a sweep takes beside its time."""
    return f"first {operator}"


def copy_key(n_bytes: int) -> str:
    """Return the key of a copy of rows."""
    return f"rows copied:{n_bytes}"


def group_key(region: Region) -> str:
    """Return the key of a bottleneck in groups of channels."""
    assert isinstance(region.cut, ChannelCut), "asked for of bottlenecks"
    first, end = region.first_piece, region.end_piece
    return f"channels {first}-{end}:{region.cut.channels}x{region.cut.rows}"


def measured_rows(value: RowValue, operator: RowOperator) -> list[int]:
    """Return the numbers of rows of its output ``value`` at which an operator is measured."""
    unit = operator.unit
    return sorted({min(-(-rows // unit) * unit, value.height) for rows in MEASURED_ROWS})


def row_keys(network: RowNetwork) -> Iterator[str]:
    """Yield the keys of everything that regions of ``network`` do."""
    for number in network.own:
        item = network.operators[number]
        for rows in measured_rows(network.values[item.output], item):
            yield row_key(number, rows)
    if network.own:
        yield from map(copy_key, MEASURED_COPIES)


@dataclass(frozen=True)
class MeasuredRows:
    """The times of a profile for ``network``: ``seconds`` by key.

    ``first``: of what only the first call of an operator in a sweep takes. ``groups``: of bottlenecks, by
    key.
    """

    seconds: Callable[[str], float]
    network: RowNetwork
    first: Callable[[int], float] = lambda operator: 0.0
    groups: Callable[[str], float] = lambda key: 0.0

    def bottleneck(self, plan: RegionPlan) -> float:
        """Return what all of a bottleneck in groups of channels takes."""
        return self.groups(group_key(plan.region))

    def call(self, operator: int, rows: int) -> float:
        """Return what row operator ``operator`` takes for ``rows`` rows of its output."""
        key = (operator, rows)
        if key not in self._calls:
            self._calls[key] = interpolated(self._table(operator), rows)
        return self._calls[key]

    def _table(self, operator: int) -> dict[int, float]:
        if operator not in self._tables:
            item = self.network.operators[operator]
            measured = measured_rows(self.network.values[item.output], item)
            self._tables[operator] = {
                rows: self.seconds(row_key(operator, rows)) for rows in measured
            }
        return self._tables[operator]

    def move(self, n_bytes: int) -> float:
        """Return what copying rows of ``n_bytes`` in all takes."""
        return interpolated(self._copies, n_bytes)

    @cached_property
    def _tables(self) -> dict[int, dict[int, float]]:
        return {}

    @cached_property
    def _calls(self) -> dict[tuple[int, int], float]:
        return {}

    @cached_property
    def _copies(self) -> dict[int, float]:
        return {n_bytes: self.seconds(copy_key(n_bytes)) for n_bytes in MEASURED_COPIES}
