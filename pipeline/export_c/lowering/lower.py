"""Which operators become C, and by which of our functions; which are part of the step before."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from models.network.catalogue import read_operator, traits_of
from models.network.fields import Array
from models.network.node import Node, NodeReader, UnsuitedError
from models.network.operators.reading import (
    BatchNorm,
    Combine,
    Conversion,
    Convolution,
    Gather,
    GroupNorm,
    LookUp,
    Map,
    MatrixProduct,
    Movement,
    OnBytes,
    Pad,
    Pooling,
    Reduction,
    Reshape,
    Resize,
    Softmax,
    TransposedConvolution,
)
from models.network.patterns import FoundActivation, activations_in
from pipeline.export_c.lowering import convolution, elements, matrix, movement
from pipeline.export_c.lowering.builder import StepBuilder
from pipeline.export_c.lowering.calls import (
    ADD,
    After,
    Function,
    KernelStep,
    StepProgram,
    ValuePointer,
)
from pipeline.export_c.lowering.functions import FUNCTIONS
from pipeline.export_c.network.network import FLIPS, ExportError, Network

_DTYPES = ("float32", *FLIPS)
#: What adds the steps of an operator.
OPERATORS: Mapping[type, Callable[[StepBuilder, Any], None]] = {
    BatchNorm: elements.batch_norm,
    Combine: elements.combine,
    Conversion: elements.convert,
    Convolution: convolution.convolution,
    Gather: movement.gather,
    GroupNorm: elements.group_norm,
    LookUp: elements.look_up,
    Map: elements.apply,
    Movement: movement.move,
    Pad: movement.pad,
    Pooling: convolution.pool,
    MatrixProduct: matrix.product,
    Reduction: elements.reduction,
    Reshape: movement.reshape,
    Resize: movement.resize,
    Softmax: elements.softmax,
    TransposedConvolution: convolution.transposed_convolution,
}
#: The same of those on bytes.
ON_BYTES: Mapping[type, Callable[[StepBuilder, Any], None]] = {
    Combine: elements.combine_bytes,
    Convolution: convolution.convolution_of_bytes,
    Movement: elements.join_bytes,
    Pooling: convolution.pool_of_bytes,
    Reduction: convolution.average_of_bytes,
    Softmax: elements.softmax_of_bytes,
}


def lower(network: Network) -> StepProgram:
    """Return the steps of ``network``.

    Raises:
        ExportError: a node, an input or an output cannot become C; the message names it and says why.
    """
    outputs = frozenset(port.name for port in network.outputs)
    to = StepBuilder(network.constants, outputs)
    for port in (*network.inputs, *network.outputs):
        if port.is_loose or port.dtype not in _DTYPES:
            raise ExportError(
                f"{network.name}: {port.name!r} is {port.dtype} {list(port.shape)}; "
                "float32, int8 and uint8 of a known shape can be exported"
            )
    for port in network.inputs:
        to.values[port.name] = Array(dtype=port.dtype, shape=port.shape)
    _check_operators(network)
    activations = _activations(network)
    inside = {at for each in activations.values() for at in each.nodes[:-1]}
    for at, node in enumerate(network.nodes):
        if at not in inside:
            _add(to, network, node, activations.get(at))
    _check_outputs(network, to)
    return _fused(StepProgram(tuple(to.steps), to.values), outputs)


def _activations(network: Network) -> dict[int, FoundActivation]:
    """Return the activations of several nodes that are one step, with fewer values, by their last node."""
    number = StepBuilder(network.constants).known.number
    kept = [port.name for port in network.outputs]
    return {
        each.nodes[-1]: each
        for each in activations_in(network.nodes, kept, number)
        if each.activation.kind in FUNCTIONS
    }


def _add(to: StepBuilder, network: Network, node: Node, found: FoundActivation | None) -> None:
    """Add the steps of ``node``, or of the activation that it ends."""
    to.label = node.label
    try:
        if found is not None:
            read = NodeReader(replace(node, inputs=(found.x,)), to.known, traits_of(node.operator))
            x = read.floats(0)
            elements.apply(to, Map(function=found.activation, x=x, y=read.made(x)))
            return
        operator = read_operator(node, to.known)
        add = OPERATORS.get(type(operator))
        if isinstance(operator, OnBytes):
            add = ON_BYTES.get(type(operator.operator))
        if add is None:
            raise UnsuitedError("it has no function in C")
        add(to, operator)
    except UnsuitedError as exc:
        message = f"{network.name}: node {node.label!r} ({node.operator}): {exc}"
        raise ExportError(message, node.label) from exc


def _check_operators(network: Network) -> None:
    """Check that all operators are known, before any of them is looked at."""
    others = [node for node in network.nodes if not traits_of(node.operator).read]
    if not others:
        return
    first = {node.operator: node.label for node in reversed(others)}
    said = ", ".join(
        f"{name} ({count}, the first {first[name]!r})"
        for name, count in Counter(node.operator for node in others).items()
    )
    message = f"{network.name}: these operators cannot be exported to C: {said}"
    raise ExportError(message, *first.values())


def _check_outputs(network: Network, to: StepBuilder) -> None:
    inputs = {port.name for port in network.inputs}
    for port in network.outputs:
        if port.name in inputs:
            raise ExportError(f"{network.name}: output {port.name!r} is an input, unchanged")
        value = to.values.get(port.name)
        if value is None:
            raise ExportError(f"{network.name}: output {port.name!r} is constant")
        if value.shape != port.shape:
            raise ExportError(
                f"{network.name}: output {port.name!r} is {list(value.shape)}, "
                f"ONNX Runtime says {list(port.shape)}"
            )


def _fused(program: StepProgram, outputs: frozenset[str]) -> StepProgram:
    """Return ``program`` with sums and functions in the step before, where its result is read there alone.

    So nothing between them is kept, and a sum may lie where what it adds lay. ``outputs``: what the caller
    reads.
    """
    readers = Counter(name for step in program.steps for name in step.reads)
    makers = Counter(step.output for step in program.steps)
    steps: dict[int, KernelStep] = {}
    open_at: dict[str, int] = {}  # where the step is whose result only one other reads
    for index, step in enumerate(program.steps):
        steps[index] = step
        for name in sorted(set(step.reads) & open_at.keys(), key=lambda name: -open_at[name]):
            whole = _joined(steps[open_at[name]], step, name, program)
            if whole is not None:
                # Here and not where the first was: what is added may be made in between.
                del steps[open_at.pop(name)]
                steps[index] = whole
                break
        last = steps[index].output
        if readers[last] == 1 and makers[last] == 1 and last not in outputs:
            open_at[last] = index
    return replace(program, steps=tuple(steps[index] for index in sorted(steps)))


def _joined(
    first: KernelStep, then: KernelStep, name: str, program: StepProgram
) -> KernelStep | None:
    """Return ``first`` with ``then``, which reads its result ``name``, in it; None where it cannot be."""
    after = first.after
    if after is None or after.function.name or then.after is None:
        return None
    if then.kernel == "apply":
        return _with(first, then, replace(after, function=then.after.function))
    addend = _addend(then, name, program)
    if after.adds and after.addend is None and addend is not None:
        added = replace(after, addend=addend, function=then.after.function)
        return replace(_with(first, then, added), in_place=(addend,))
    return None


def _with(first: KernelStep, then: KernelStep, after: After) -> KernelStep:
    """Return ``first`` that makes what ``then`` made."""
    arguments = tuple(
        replace(item, name=then.output)
        if isinstance(item, ValuePointer) and item.name == first.output
        else item
        for item in first.arguments
    )
    return replace(first, arguments=arguments, output=then.output, after=after)


def _addend(then: KernelStep, name: str, program: StepProgram) -> str | None:
    """Return what ``then`` adds to ``name``, element by element; None: it does something else."""
    others = [other for other in then.reads if other != name]
    if Function(ADD, ()) not in then.arguments or len(others) != 1 or then.weights:
        return None
    shapes = {program.values[value].shape for value in (name, others[0], then.output)}
    return others[0] if len(shapes) == 1 else None
