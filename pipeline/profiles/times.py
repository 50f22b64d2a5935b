"""Times that were measured, as distributions: of reads, copies, kernels, rows; and their keys.

Seconds, bytes.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, PositiveInt

from models.packs.manifest import checksum
from models.packs.records.row_parts import RowOperator, RowValue
from pipeline.planning.found_plans import PLANNER_VERSION, canonical
from pipeline.planning.plan import Plan
from pipeline.profiles.delay_limits import Seconds
from pipeline.program.program import PreparedPiece
from pipeline.program.region_plan import ChannelCut, Region, RegionPlan
from pipeline.program.row_network import RowNetwork
from pipeline.program.steps import Phase


def interpolated(table: Mapping[int, float], at: int) -> float:
    """Return the value at ``at``: linear between entries, in proportion above the last one.

    Below the first size the time is that of the first: the cost of every operation, however small.
    """
    known = sorted(table)
    position = bisect_left(known, at)
    if position == len(known):
        return table[known[-1]] * at / known[-1]
    high = known[position]
    if position == 0 or high == at:
        return table[high]
    low = known[position - 1]
    share = (at - low) / (high - low)
    return table[low] + share * (table[high] - table[low])


# What distinguishes the kernels, the plans and the orders of operations of a profile.


def piece_key(piece: PreparedPiece) -> str:
    """Return what distinguishes the kernels of a pack: graph, first span and count, where it writes."""
    target = f"{piece.outputs[0].index}+{piece.outputs[0].offset}" if piece.outputs else ""
    weights = "" if piece.span is None else f"{piece.span}*{piece.n_spans}"
    return f"{piece.graph}:{weights}:{target}"


def plan_key(plan: Plan) -> str:
    """Return what distinguishes plans of a pack: architecture, launches, reads and what each waits for."""
    parts = {
        "planner": PLANNER_VERSION,
        "ring_bytes": plan.ring_bytes,
        "resident": plan.resident,
        "groups": [_known(asdict(group)) for group in plan.groups],
        "depth": plan.choice.depth,
        "regions": [asdict(region) for region in plan.choice.regions],
        "steps": [
            step.number if isinstance(step, Phase) else piece_key(step) for step in plan.steps
        ],
        "runs": [(run.start, run.stop) for run in plan.runs],
        "stages": [asdict(stage) for stage in plan.stages],
    }
    return f"{plan.architecture.name}-{checksum(canonical(parts).encode())}"


def _known(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def order_of(plan: Plan) -> str:
    """Return by which name of ``overlaps`` operations of ``plan`` meet each other.

    In a ring of one chunk reads and kernels take turns, "2s"; in a larger one they overlap, "auto".
    """
    name = plan.architecture.name
    roomy = plan.ring_bytes >= 2 * plan.largest_chunk_bytes
    return "auto" if name == "2s-md" or (name == "2s" and roomy) else name.removesuffix("-md")


# Distributions, r_i, c_i and k_i of seed 003.

Quantile = Literal["median", "p95", "max"]
_DIGITS = 9  # nanoseconds

_EXACTLY = ConfigDict(extra="forbid")
#: Of models of pydantic, which would keep strings for as long as the process lives.
RECORD = ConfigDict(frozen=True, extra="forbid", cache_strings="keys")


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """What ``count`` measurements of one time gave, in seconds. A profile has thousands of them."""

    __pydantic_config__ = _EXACTLY

    count: PositiveInt
    median: Seconds
    p95: Seconds
    max: Seconds

    @classmethod
    def of(cls, samples: Sequence[float]) -> "Distribution":
        """Summarise at least one sample."""
        median, p95 = np.percentile(samples, (50, 95))
        return cls(
            count=len(samples),
            median=round(float(median), _DIGITS),
            p95=round(float(p95), _DIGITS),
            max=round(max(samples), _DIGITS),
        )

    def at(self, quantile: Quantile) -> float:
        return float(getattr(self, quantile))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTime:
    """Of one read of ``n_bytes`` while ``depth`` are in flight, itself included."""

    __pydantic_config__ = _EXACTLY

    n_bytes: PositiveInt
    depth: PositiveInt
    seconds: Distribution


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyTime:
    """Of one copy of ``n_bytes`` by the copy stage."""

    __pydantic_config__ = _EXACTLY

    n_bytes: PositiveInt
    seconds: Distribution


class Overlap(BaseModel):
    """What changes when reads, copies and kernels run beside each other in one order of operations.

    Factors of r and c; ``slowdown`` and ``disturbance`` as in ``Durations``.
    """

    model_config = RECORD

    read: Seconds = 1.0
    copying: Seconds = 1.0
    slowdown: Seconds = 0.0
    disturbance: Seconds = 0.0


# What a profile says of row operators: times of some numbers of rows, and of copies.

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
