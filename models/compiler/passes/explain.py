"""What each pass changed: nodes, operators, values, and what it found of pieces."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from models.compiler.cutting.partition import CutGraph
from models.compiler.passes.record import Compilation, Error, Level, Pass
from models.graphs.writer import node_of
from models.network.node import Node


@dataclass(frozen=True)
class PassChange:
    """What the pass ``name`` changed.

    ``added``, ``removed``: nodes by operator; one that has other inputs, outputs or attributes is counted
    among ``rewritten``. ``moved``: whether nodes that stay have another order. ``counts``: what there is
    of each kind of group, share or piece, where that is not as before.
    """

    name: str
    level: Level
    error: Error
    required: bool
    nodes: tuple[int, int]
    values: tuple[int, int]
    constants: tuple[int, int]
    added: Mapping[str, int]
    removed: Mapping[str, int]
    rewritten: int
    moved: bool
    counts: Mapping[str, int]

    @property
    def is_none(self) -> bool:
        """Whether nothing changed."""
        sizes = (self.nodes, self.values, self.constants)
        same = all(before == after for before, after in sizes)
        return same and not (self.rewritten or self.moved or self.counts)


@dataclass(frozen=True)
class _Snapshot:
    nodes: Sequence[bytes]
    operators: Counter[str]
    values: int
    constants: int
    counts: Mapping[str, int]


class Explaining:
    """Notes what each pass changes in ``changes``: an observer of passes."""

    def __init__(self) -> None:
        self.changes: list[PassChange] = []
        self._before: _Snapshot | None = None

    def before(self, work: Compilation, step: Pass) -> None:
        """Look at the network in front of the first pass; in front of others it is as it was behind one."""
        self._before = self._before or _snapshot(work)

    def after(self, work: Compilation, step: Pass) -> None:
        """Note what ``step`` changed."""
        before, after = self._before, _snapshot(work)
        assert before is not None
        self._before = after
        old, new = Counter(before.nodes), Counter(after.nodes)
        gone, come = before.operators - after.operators, after.operators - before.operators
        stayed = old & new
        self.changes.append(
            PassChange(
                name=step.name,
                level=step.level,
                error=step.error,
                required=step.required,
                nodes=(len(before.nodes), len(after.nodes)),
                values=(before.values, after.values),
                constants=(before.constants, after.constants),
                added=dict(sorted(come.items())),
                removed=dict(sorted(gone.items())),
                rewritten=(new - old).total() - come.total(),
                moved=[node for node in before.nodes if node in stayed]
                != [node for node in after.nodes if node in stayed],
                counts={
                    name: count
                    for name, count in after.counts.items()
                    if count != before.counts.get(name, 0)
                },
            )
        )


def _snapshot(work: Compilation) -> _Snapshot:
    graph = work.graph
    return _Snapshot(
        nodes=[_unnamed(node) for node in graph.nodes],
        operators=Counter(node.operator for node in graph.nodes),
        values=len(graph.inputs) + sum(len(node.made) for node in graph.nodes),
        constants=len(graph.constants),
        counts=_counts(work.divided),
    )


def _unnamed(node: Node) -> bytes:
    """Return what ``node`` computes of what: its name is not among that."""
    unnamed = replace(node, name="", attributes=dict(sorted(node.attributes.items())))
    return bytes(node_of(unnamed).SerializeToString(deterministic=True))


def _counts(divided: CutGraph) -> dict[str, int]:
    return {
        "regions": len(divided.graph.regions),
        "groups": len(divided.fused),
        "values inside others": len(divided.aliases.parents),
        "nodes without a kernel": len(divided.aliases.elided),
        "chains": len(divided.chains),
        "operators on rows": len(divided.rows.nodes),
        "bottlenecks": len(divided.bottlenecks),
        "pieces": len(divided.pieces),
        "graphs": len(divided.graphs),
        "alternatives": len(divided.alternatives),
        "tables read by rows": sum(piece.page_checksums is not None for piece in divided.pieces),
    }
