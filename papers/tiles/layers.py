"""The layers that a group fuses: a chain of convolutions, pools and operators on elements."""

from dataclasses import dataclass
from math import prod

from models.darknet.layers.layer import DarknetNetwork
from models.darknet.layers.parameters import ConvolutionParameters, MaxPoolParameters
from models.errors import ModelError
from models.network.windows import SAME, Window
from pipeline.program.boxes.tiles import TiledOperator
from pipeline.program.program import Program


class TileError(ModelError):
    """Layers cannot be fused, or a configuration is not one of theirs; the message names which."""


@dataclass(frozen=True, slots=True)
class FusedLayer:
    """One layer of a chain. ``source``, ``output``: channels, height, width, in elements.

    ``down``, ``across``: which rows and columns of its input it needs. ``weights``: elements, 0 of a pool.
    ``piece``: the first of its pieces in a pack, where it is of one.
    """

    name: str
    source: tuple[int, int, int]
    output: tuple[int, int, int]
    down: Window
    across: Window
    weights: int
    piece: int = 0

    @property
    def kernel(self) -> tuple[int, int]:
        """Rows and columns of the window."""
        return self.down.reach, self.across.reach

    @property
    def stride(self) -> int:
        return self.down.stride


def darknet_layers(network: DarknetNetwork, count: int) -> tuple[FusedLayer, ...]:
    """Return the first ``count`` layers of a Darknet network as a chain.

    Raises:
        TileError: one is neither a convolution nor a maximum, or reads something else than the one before.
    """
    found: list[FusedLayer] = []
    shape = (network.channels, network.height, network.width)
    for layer in network.layers[:count]:
        name = f"layer {layer.index} ({layer.kind})"
        if layer.inputs != (layer.index - 1,):
            raise TileError(f"{name} does not read the layer before it, and that alone")
        weights, down, across = 0, SAME, SAME
        match layer.parameters:
            case ConvolutionParameters() as conv:
                weights = next(a.size for a in layer.arrays if a.name.endswith(".weights"))
                down, across = _windows(conv.size, conv.stride, (conv.padding, conv.padding))
            case MaxPoolParameters(size=size, stride=stride, pads=(left, top, _, _)):
                down, across = _windows(size, stride, (left, top))
            case _:
                raise TileError(f"{name} is neither a convolution nor a maximum")
        found.append(FusedLayer(name, shape, layer.shape, down, across, weights))
        shape = layer.shape
    return tuple(found)


def pack_layers(program: Program) -> tuple[FusedLayer, ...]:
    """Return the layers of a tiled pack that can run on tiles, from its first to the first that cannot.

    Raises:
        TileError: it reads what is not the layer before it, as a residual sum does, or has no such layers.
    """
    found: list[FusedLayer] = []
    last: int | None = None
    for operator in program.row_operators:
        output = program.row_values[operator.output]
        if not isinstance(operator, TiledOperator):
            break
        if len(operator.inputs) != 1 or operator.inputs[0].row_value != (
            operator.inputs[0].row_value if last is None else last
        ):
            raise TileError(
                f"{program.name}: {output.name} does not read the layer before it, and that alone: "
                "only a chain of layers can be fused"
            )
        found.append(_of_pack(program, operator))
        last = operator.output
    if not found:
        raise TileError(f"{program.name}: no layer of it runs on tiles")
    return tuple(found)


def _of_pack(program: Program, operator: TiledOperator) -> FusedLayer:
    taken = operator.inputs[0]
    source, output = program.row_values[taken.row_value], program.row_values[operator.output]
    weights = max((prod(operand.shape) for operand in operator.weights), default=0)
    return FusedLayer(
        output.name,
        (source.shape[1], source.shape[2], source.shape[3]),
        (output.shape[1], output.shape[2], output.shape[3]),
        taken.window,
        operator.across[0],
        weights,
        operator.first_piece,
    )


def _windows(size: int, stride: tuple[int, int], before: tuple[int, int]) -> tuple[Window, Window]:
    """Return the windows down and across of a Darknet layer, whose numbers are across, down."""
    across, down = (
        Window(size, step, before=pad) for step, pad in zip(stride, before, strict=True)
    )
    return down, across
