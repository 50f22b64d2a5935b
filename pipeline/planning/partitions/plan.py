"""The plan of a network whose partitions compute at once: a plan for each, and the edges between them.

Partitions share no memory: what one uses while it runs, another uses at the same moment for another frame
(seed 000, Algorithm 1: never one buffer for two partitions of one set of J). An edge between two has two
buffers: one is written for a frame while the other is read for the frame before.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.planning.plan import Choice, Plan
from pipeline.schedule.schedule import Stage

#: Of each edge between partitions.
BUFFERS = 2


@dataclass(frozen=True)
class PipelinePlan(Plan):
    """Sums over ``partitions``, which begin at piece 0 and at each of ``cuts``; sizes in bytes.

    ``edges``: one buffer of the edge at each cut; all are counted in ``arena_bytes``. Engines run the plans
    of partitions: here are no steps, and nothing lies anywhere.
    """

    cuts: tuple[int, ...]
    partitions: tuple[Plan, ...]
    edges: tuple[int, ...]

    @property
    def edge_bytes(self) -> int:
        """All buffers of all edges."""
        return BUFFERS * sum(self.edges)

    @property
    def launches(self) -> int:
        return sum(plan.launches for plan in self.partitions)

    @property
    def read_bytes(self) -> int:
        return sum(plan.read_bytes for plan in self.partitions)

    def as_dict(self) -> dict[str, Any]:
        return {
            **super().as_dict(),
            "cuts": list(self.cuts),
            "edge_bytes": self.edge_bytes,
            "partitions": [plan.as_dict() for plan in self.partitions],
        }


def pipeline_plan(
    partitions: Sequence[Plan], cuts: Sequence[int], edges: Sequence[int]
) -> PipelinePlan:
    """Return the plan of ``partitions``, which begin at piece 0 and at ``cuts``; ``edges``: bytes there."""
    first = partitions[0]
    return PipelinePlan(
        architecture=first.architecture,
        choice=Choice(),
        steps=(),
        largest_chunk_bytes=max(plan.largest_chunk_bytes for plan in partitions),
        staging_bytes=sum(plan.staging_bytes for plan in partitions),
        ring_bytes=sum(plan.ring_bytes for plan in partitions),
        resident_bytes=sum(plan.resident_bytes for plan in partitions),
        arena_bytes=sum(plan.arena_bytes for plan in partitions) + BUFFERS * sum(edges),
        scratch_bytes=sum(plan.scratch_bytes for plan in partitions),
        session_bytes=sum(plan.session_bytes for plan in partitions),
        object_bytes=sum(plan.object_bytes for plan in partitions),
        io_bytes=sum(plan.io_bytes for plan in partitions),
        streamed=(),
        groups=(),
        read_places=(),
        places=(),
        resident=(),
        spans=(),
        values=(),
        users=(),
        runs=(),
        stages=(Stage("kernel", ()),),
        cuts=tuple(cuts),
        partitions=tuple(partitions),
        edges=tuple(edges),
    )
