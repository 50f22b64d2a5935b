"""Which operators become C, and by which of our functions."""

from collections import Counter
from collections.abc import Callable

from models.network.fields import Array
from pipeline.export_c.errors import ExportError
from pipeline.export_c.lowering import (
    byte_elements,
    byte_pools,
    byte_products,
    convolution,
    elementwise,
    matrix,
    movement,
    normalise,
    resizing,
)
from pipeline.export_c.lowering.node import Lowering, Operation
from pipeline.export_c.lowering.scales import FLIPS
from pipeline.export_c.lowering.steps import Program
from pipeline.export_c.network.network import Network

_DTYPES = ("float32", *FLIPS)


def _max_pool(operation: Operation) -> None:
    of_floats = operation.array(0).dtype == "float32"
    (convolution.max_pool if of_floats else byte_pools.max_pool)(operation)


OPERATORS: dict[str, Callable[[Operation], None]] = {
    **elementwise.OPERATORS,
    **byte_elements.OPERATORS,
    **byte_pools.OPERATORS,
    **byte_products.OPERATORS,
    "AveragePool": convolution.average_pool,
    "BatchNormalization": normalise.batch_normalization,
    "Concat": movement.concat,
    "Conv": convolution.convolution,
    "ConvTranspose": convolution.transposed_convolution,
    "DepthToSpace": movement.depth_to_space,
    "Dropout": movement.dropout,
    "Expand": movement.expand,
    "Flatten": movement.flatten,
    "Gather": movement.gather,
    "Gemm": matrix.gemm,
    "GlobalAveragePool": convolution.global_average_pool,
    "GlobalMaxPool": convolution.global_max_pool,
    "Identity": movement.identity,
    "LayerNormalization": normalise.layer_normalization,
    "MatMul": matrix.matmul,
    "MaxPool": _max_pool,
    "Pad": movement.pad,
    "ReduceMax": normalise.largest,
    "ReduceMean": normalise.mean,
    "Reshape": movement.reshape,
    "Resize": resizing.resize,
    "Slice": movement.slice_,
    "Softmax": normalise.softmax,
    "SpaceToDepth": movement.space_to_depth,
    "Split": movement.split,
    "Squeeze": movement.squeeze,
    "Transpose": movement.transpose,
    "Unsqueeze": movement.unsqueeze,
    "Upsample": resizing.resize,
    "com.microsoft.FusedMatMul": matrix.fused_matmul,
}


def lower(network: Network) -> Program:
    """Return the steps of ``network``.

    Raises:
        ExportError: a node, an input or an output cannot become C; the message names it and says why.
    """
    lowering = Lowering(network, constants=dict(network.constants))
    for port in (*network.inputs, *network.outputs):
        if port.is_loose or port.dtype not in _DTYPES:
            raise ExportError(
                f"{network.name}: {port.name!r} is {port.dtype} {list(port.shape)}; "
                "float32, int8 and uint8 of a known shape can be exported"
            )
    for port in network.inputs:
        lowering.values[port.name] = Array(dtype=port.dtype, shape=port.shape)
    _check_operators(network)
    for node in network.nodes:
        OPERATORS[node.operator](Operation(lowering, node))
    _check_outputs(network, lowering)
    return Program(tuple(lowering.steps), lowering.values)


def _check_operators(network: Network) -> None:
    """Check that all operators are known, before any of them is looked at."""
    others = [node for node in network.nodes if node.operator not in OPERATORS]
    if not others:
        return
    first = {node.operator: node.label for node in reversed(others)}
    said = ", ".join(
        f"{name} ({count}, the first {first[name]!r})"
        for name, count in Counter(node.operator for node in others).items()
    )
    raise ExportError(f"{network.name}: these operators cannot be exported to C: {said}")


def _check_outputs(network: Network, lowering: Lowering) -> None:
    given = {port.name for port in network.inputs}
    for port in network.outputs:
        if port.name in given:
            raise ExportError(f"{network.name}: output {port.name!r} is an input, unchanged")
        made = lowering.values.get(port.name)
        if made is None:
            raise ExportError(f"{network.name}: output {port.name!r} is constant")
        if made.shape != port.shape:
            raise ExportError(
                f"{network.name}: output {port.name!r} is {list(made.shape)}, "
                f"the pack says {list(port.shape)}"
            )
