"""A configuration as regions of a pack: what the engine executes."""

from papers.tiles.configuration import TileConfiguration
from papers.tiles.layers import FusedLayer, TileError
from pipeline.program.cuts import Region
from pipeline.program.program import Program


def regions_of(
    program: Program, layers: tuple[FusedLayer, ...], configuration: TileConfiguration
) -> tuple[Region, ...]:
    """Return the regions of ``configuration``, whose layers are those of the pack.

    A group of one tile runs whole, each of its layers alone.

    Raises:
        TileError: it has other layers than the pack.
    """
    if configuration.end != len(layers):
        raise TileError(f"{configuration} has {configuration.end} layers, the pack {len(layers)}")
    after = program.row_operators[len(layers) - 1].end_piece
    starts = [*(layer.piece for layer in layers), after]
    found = []
    for group in configuration.groups:
        if not group.tiling.is_whole:
            _, height, width = layers[group.end - 1].output
            found.append(
                Region(
                    starts[group.first],
                    starts[group.end],
                    group.tiling.boxes_of(height, width),
                )
            )
    return tuple(found)
