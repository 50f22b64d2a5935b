"""Let ONNX Runtime optimise a whole model for its target and read back what it made.

For a GPU it folds constants and batch norms and nothing else: the rest would be for its own CPU kernels.

ONNX Runtime uses its blocked (NCHWc) kernels only for constant weights, so it must see the weights
here; the pieces cut from its result later take the reordered weights as inputs. Weights stay in files:
ONNX Runtime maps them, and what holds a model twice as large as memory is a working file.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from models.compiler.analysis.graph import Graph
from models.compiler.optimising.as_convolutions import AsConvolutions, TransposedAsConvolutions
from models.compiler.optimising.along_rows import AlongRows
from models.compiler.optimising.bodies import move_out
from models.compiler.optimising.by_onnxruntime import (
    move_weights,
    optimised_file,
    types_of,
    write_reference,
)
from models.compiler.optimising.integer_activations import (
    LeaveTypesToZeroPoints,
    LimitIntegers,
    MakeUnsigned,
    WriteScalars,
    WriteZeroPoints,
)
from models.compiler.optimising.integer_weights import (
    QUANTISES_WEIGHTS,
    find_integers,
    make_floats,
)
from models.compiler.optimising.layout import Layout
from models.compiler.optimising.model_checks import check, check_agreement, check_scales
from models.compiler.optimising.normalise import (
    PoolFirst,
    ScaleResizes,
    TakeCropsApart,
    check_ports,
    copy_constant_outputs,
    domains,
    has_dtype,
    settle_pool,
    store_by_row,
    take_tensors,
)
from models.compiler.optimising.rewrite import RewriteActivations
from models.errors import OnnxError
from models.graphs.file import numbers_of
from models.graphs.nodes import live, reads
from models.network.fields import Array
from models.packs.records.pieces import TurnedSoftmax
from models.packs.target import Target, host_target
from models.progress import Progress, silent
from models.runtime.heap import trim_heap
from models.runtime.sessions import SessionError, reason

_Level = ort.GraphOptimizationLevel
#: The optimisers that make ONNX Runtime's blocked layout, and put sums into plain convolutions.
BLOCKS_CHANNELS, FUSES_PLAIN = "NchwcTransformer", "ConvAddActivationFusion"


def optimise(
    model: onnx.ModelProto,
    path: Path,
    folder: Path,
    target: Target | None = None,
    progress: Progress = silent,
) -> Graph:
    """Return the optimised graph, which the compiler works on.

    Args:
        model: from ``read_onnx``; its weights leave the message.
        path: the source, for messages.
        folder: an empty folder for intermediate files.
        target: what it is optimised for; None: this machine's CPU.
        progress: is called with what ONNX Runtime is doing.

    Raises:
        OnnxError: the model is not valid, or has an operator that ONNX Runtime does not have.
        CompileError: an input or output has a type that no request can carry.
    """
    target = target or host_target()
    for_cpu = target.capability is None
    source = folder / "source.onnx"
    move_weights(model, source.with_suffix(".data"))
    check(model, folder / "checked.onnx", path)
    check_scales(model, path)
    WriteZeroPoints(model).run()
    if for_cpu:
        RewriteActivations(model).run()
    source.write_bytes(model.SerializeToString())
    # In two steps, since each rewrites most weights (batch norms folded, layouts blocked) and holds what
    # it rewrote. The second also folds what the first inserted: casts of weights, bodies of functions.
    progress("optimise", "folding what is constant")
    result = optimised_file(source, folder / "folded.onnx", _Level.ORT_ENABLE_BASIC, path)
    block = target.block if for_cpu else 1
    _check_folded(result, path, block)
    result, dequantised = _without_integers(result, path, target)
    progress("optimise", f"for {target.isa}")
    level = _Level.ORT_ENABLE_ALL if for_cpu else _Level.ORT_ENABLE_BASIC
    without = [QUANTISES_WEIGHTS] * bool(dequantised) + [BLOCKS_CHANNELS]
    without += [FUSES_PLAIN] * (block > 1)
    result = optimised_file(result, folder / "optimised.onnx", level, path, ";".join(without))
    optimised = onnx.load(result, load_external_data=False)
    move_out(optimised)
    tensors = take_tensors(optimised, folder)
    copy_constant_outputs(optimised)
    TakeCropsApart(optimised).run()
    PoolFirst(optimised).run()
    types = types_of(optimised, path, folder)
    while settle_pool(optimised, types.placed):
        types = types_of(optimised, path, folder)
    check_ports(optimised, types, path)
    _check_shapes(optimised, types.placed, path)
    ScaleResizes(optimised, types.placed).run()
    values, softmaxes, used = types.placed, list[TurnedSoftmax](), dict[str, int]()
    if block > 1:
        layout = Layout(optimised, values, block, folder)
        layout.run()
        values, softmaxes, used = values | layout.types, layout.softmaxes, layout.used_channels
    if for_cpu:
        along = AlongRows(optimised, values)
        along.run()
        values, softmaxes = values | along.types, [*softmaxes, *along.softmaxes]
    graph = Graph(
        nodes=tuple(live(optimised)),
        values=_used(values, optimised),
        constants=_constants(optimised, folder),
        inputs=tuple(value.name for value in optimised.graph.input),
        outputs=tuple(value.name for value in optimised.graph.output),
        opsets=tuple(_used_opsets(optimised)),
        loose=types.loose,
        tensors=tensors,
        ir_version=optimised.ir_version,
        dequantised=dequantised,
        turned_softmaxes=tuple(softmaxes),
        used_channels=used,
    )
    return store_by_row(graph)


def _without_integers(folded: Path, path: Path, target: Target) -> tuple[Path, dict[str, str]]:
    """Return a file with the model in ``folded`` without constants that no kernel reads as integers.

    And which these were (models/compiler/optimising/integer_weights.py).
    """
    folder, for_cpu = folded.parent, target.capability is None
    model = onnx.load(folded, load_external_data=False)
    if not find_integers(model, folder):
        return folded, {}
    if for_cpu:
        MakeUnsigned(model).run()
        LimitIntegers(model).run()
    folded.write_bytes(model.SerializeToString())
    if for_cpu:
        folded = optimised_file(folded, folder / "fused.onnx", _Level.ORT_ENABLE_EXTENDED, path)
        model = onnx.load(folded, load_external_data=False)
    try:
        reasons = make_floats(model, folder)
    except SessionError as exc:
        raise OnnxError(f"{path}: ONNX Runtime refuses it: {reason(exc)}") from exc
    if reasons:
        folded.write_bytes(model.SerializeToString())
        _check_folded(folded, path, target.block if for_cpu else 1)
    return folded, reasons


def _check_folded(result: Path, path: Path, block: int) -> None:
    """Check the shapes of the model in ``result``: its nodes have the names that users know.

    Then say in convolutions what can be said so (as_convolutions.py).

    In the source nodes may contradict each other that ONNX Runtime never runs: only their shape is read.
    """
    model = onnx.load(result, load_external_data=False)
    placed = types_of(model, path, result.parent).placed
    trim_heap()
    _check_shapes(model, placed, path)
    passes = (AsConvolutions, TransposedAsConvolutions)
    changed = [each(model, placed, block).run() for each in passes]
    changed += [each(model).run() for each in (WriteScalars, LeaveTypesToZeroPoints)]
    if any(changed):
        result.write_bytes(model.SerializeToString())


def _check_shapes(model: onnx.ModelProto, values: Mapping[str, Array], path: Path) -> None:
    shapes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    shapes |= {name: array.shape for name, array in values.items()}
    check_agreement(live(model), shapes, path)


def fold(model: onnx.ModelProto, folder: Path, path: Path) -> Path:
    """Return a file in ``folder`` with ``model``, from ``read_onnx``, and what is constant in it folded.

    Raises:
        OnnxError: as ``optimise``; messages call the model ``path``.
    """
    file = write_reference(model, folder)
    check(model, folder / "checked.onnx", path)
    return optimised_file(file, folder / "folded.onnx", _Level.ORT_ENABLE_BASIC, path)


def _used(values: Mapping[str, Array], model: onnx.ModelProto) -> dict[str, Array]:
    """Return those of ``values`` that ``model`` has."""
    names = {name for node in model.graph.node for name in (*reads(node), *node.output)}
    names |= {port.name for port in (*model.graph.input, *model.graph.output)}
    return {name: array for name, array in values.items() if name in names}


def _constants(model: onnx.ModelProto, folder: Path) -> dict[str, NDArray[Any]]:
    """Return the initializers of ``model``, which lies in ``folder``; large ones are mapped."""
    held = (tensor for tensor in model.graph.initializer if has_dtype(tensor))
    return {tensor.name: numbers_of(tensor, folder) for tensor in held}


def _used_opsets(model: onnx.ModelProto) -> list[onnx.OperatorSetIdProto]:
    used = {domain for node in model.graph.node for domain in domains(node)} | {""}
    return [item for item in model.opset_import if item.domain in used]
