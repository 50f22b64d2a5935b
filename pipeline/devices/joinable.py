"""Which graphs of a pack a device joins: what plans of launches of several steps are made on."""

from dataclasses import replace

from models.packs.choice import every_piece
from models.packs.pack import Pack
from models.runtime.joined_graphs import is_one
from pipeline.devices.base import Device
from pipeline.devices.pack_kernels import PackKernels


def with_joins(pack: Pack, device: Device) -> Pack:
    """Return ``pack`` with ``joins`` of each graph as ``device`` runs it: of all its pieces, or of none.

    And ``is_one`` of those that join.
    """
    kernels = PackKernels(pack, device)
    joins: dict[int, bool] = {}
    for piece in every_piece(pack.manifest):
        joins[piece.graph] = joins.get(piece.graph, True) and kernels.joins(piece)
    graphs = tuple(
        replace(graph, joins=True, is_one=is_one(pack.graphs[number]))
        if joins.get(number, False)
        else graph
        for number, graph in enumerate(pack.manifest.graphs)
    )
    return replace(pack, manifest=pack.manifest.model_copy(update={"graphs": graphs}))
