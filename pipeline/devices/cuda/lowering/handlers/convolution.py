"""Convolutions, with what is fused into them."""

from pipeline.devices.cuda.call import Call
from pipeline.devices.cuda.calls.convolutions.geometry import Convolution, Epilogue
from pipeline.devices.cuda.calls.convolutions.tiled import convolve, scratch_bytes
from pipeline.devices.cuda.lowering.errors import UnsuitedError
from pipeline.devices.cuda.lowering.geometry import choose
from pipeline.devices.cuda.lowering.handlers.activation import fused_activation
from pipeline.devices.cuda.lowering.handlers.base import Handler
from pipeline.devices.cuda.lowering.handlers.windows import planar
from pipeline.devices.cuda.lowering.node import Node
from pipeline.devices.cuda.lowering.scope import Scope


def _conv(node: Node, scope: Scope) -> list[Call]:
    """Conv, and FusedConv: its fourth input is added before the activation."""
    shape = _geometry(node, scope)
    epilogue = _epilogue(node, scope)
    algorithm = choose(shape, scope.settings, epilogue.residual is not None)
    scope.convolutions.append(shape)
    needed = scratch_bytes(shape, algorithm)
    return convolve(
        shape,
        scope.read(node.input(0)),
        scope.read(node.input(1)),
        scope.write(node.output),
        epilogue,
        scratch=scope.scratch(needed) if needed else None,
        algorithm=algorithm,
        multiprocessors=scope.settings.multiprocessors,
    )


def _geometry(node: Node, scope: Scope) -> Convolution:
    shape, weights = scope.shape(node.input(0)), scope.shape(node.input(1))
    frame = planar(node, weights[2:], shape)
    groups = int(node.attribute("group", 1))
    if weights[1] * groups != shape[1]:
        raise UnsuitedError(f"weights {list(weights)} in {groups} groups, input {list(shape)}")
    return Convolution(
        batch=shape[0],
        channels=shape[1],
        height=frame.size[0],
        width=frame.size[1],
        filters=weights[0],
        kernel=frame.kernel,
        strides=frame.strides,
        pads=frame.pads[:2],
        dilations=frame.dilations,
        out_height=frame.result[0],
        out_width=frame.result[1],
        groups=groups,
    )


def _epilogue(node: Node, scope: Scope) -> Epilogue:
    bias, residual, last = node.optional(2), node.optional(3), False
    if node.fusion is not None and node.fusion.residual is not None:
        residual, last = node.fusion.residual, node.fusion.residual_last
    for name in filter(None, (bias, residual)):
        scope.shape(name)  # float32
    then = fused_activation(node)
    return Epilogue(
        None if bias is None else scope.read(bias),
        None if residual is None else scope.read(residual),
        last,
        then.activation,
        then.alpha,
        then.beta,
    )


OPERATORS: dict[str, Handler] = {"Conv": _conv}
MICROSOFT_OPERATORS: dict[str, Handler] = {"FusedConv": _conv}
