"""The activation that is fused into a kernel, as kernels take it."""

from models.graphs.activations import Function, function_named
from pipeline.devices.cuda.calls.activation import Activated, Activation
from pipeline.devices.cuda.lowering.errors import UnsuitedError
from pipeline.devices.cuda.lowering.node import Node

# FusedGemm has each parameter as an attribute of its own.
_PARAMETERS = ("activation_alpha", "activation_beta")


def activated(function: Function | None) -> Activated:
    """Return ``function`` as kernels take it; None is no activation."""
    if function is None:
        return Activated()
    return Activated(Activation[function.kind], function.alpha, function.beta)


def fused_activation(node: Node) -> Activated:
    """Return the activation that is computed with ``node``: its attribute, or a node behind it.

    Raises:
        UnsuitedError: the attribute names one that kernels do not have.
    """
    name = node.attribute("activation")
    if not name:
        return activated(node.fusion.function if node.fusion is not None else None)
    given = [node.attributes[key] for key in _PARAMETERS if key in node.attributes]
    function = function_named(name, node.attribute("activation_params", given))
    if function is None:
        raise UnsuitedError(f"activation {name}")
    return activated(function)
