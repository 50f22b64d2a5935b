"""Describe what pieces of quantised layers compute: the tasks of a manifest, each of them once."""

from dataclasses import dataclass, field, replace

from models.compiler.analysis.slices import CutPiece
from models.compiler.cutting.partition import CutGraph
from models.compiler.cutting.pieces import constants_of, inline_constants
from models.compiler.cutting.quantised_nodes import whole_task
from models.network.operators.quantised import Quantised
from models.packs.target import Target


@dataclass(frozen=True)
class QuantisedDescriber:
    """Describes the pieces of ``parts`` for ``target``; ``numbers``: of the tasks that were described."""

    parts: CutGraph
    target: Target
    numbers: dict[Quantised, int] = field(default_factory=dict)

    def piece(self, piece: CutPiece, data: bytes) -> int | None:
        """Return the number of the task that ``piece``, serialised as ``data``, is; None: it is none."""
        nodes = range(piece.first_node, piece.end_node)
        on_gpu = self.target.capability is not None
        if on_gpu or piece.region is not None or not self.parts.aliases.elided.isdisjoint(nodes):
            return None
        found = whole_task(self.parts.graph, nodes, tuple(piece.inputs))
        if found is None or len(piece.outputs) != 1:
            return None
        graph = self.parts.graph
        names = inline_constants(graph, graph.nodes[nodes.start : nodes.stop], piece.inputs)
        places = dict(zip(names, constants_of(data), strict=True))
        constants = tuple(places[name] for name in found.names[len(piece.inputs) :])
        task = replace(found.task, constants=constants)
        return self.numbers.setdefault(task, len(self.numbers))
