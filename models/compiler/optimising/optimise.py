"""Let ONNX Runtime optimise a whole model for its target and read back what it made.

For a GPU it folds constants and batch norms and nothing else: the rest would be for its own CPU kernels.

ONNX Runtime uses its blocked (NCHWc) kernels only for constant weights, so it must see the weights
here; the pieces cut from its result later take the reordered weights as inputs. Weights stay in files:
ONNX Runtime maps them, and what holds a model twice as large as memory is a working file.
"""

import errno
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from models.compiler.analysis.agree import check_agreement
from models.compiler.analysis.graph import Graph
from models.compiler.analysis.types import ValueTypes, value_types
from models.compiler.optimising.blocked import stay_blocked
from models.compiler.optimising.bodies import move_out, rename_inner
from models.compiler.optimising.crops import take_crops_apart
from models.compiler.optimising.dense import as_convolutions
from models.compiler.optimising.integers.floats import (
    QUANTISES_WEIGHTS,
    find_integers,
    make_floats,
)
from models.compiler.optimising.integers.limits import limit_integers
from models.compiler.optimising.integers.unsigned import make_unsigned
from models.compiler.optimising.matrices import store_by_row
from models.compiler.optimising.normalise import (
    check_ports,
    copy_constant_outputs,
    domains,
    has_dtype,
    take_tensors,
)
from models.compiler.optimising.onnx_checker import check
from models.compiler.optimising.pools import settle_pool
from models.compiler.optimising.rewrite import rewrite
from models.compiler.optimising.scale_checks import check_scales
from models.compiler.optimising.softmax import along_rows
from models.errors import CompileError, OnnxError
from models.graphs.file import INSIDE_BYTES, FileRange, copy_range, refer, reference
from models.graphs.nodes import all_graphs, live, made
from models.packs.records.fields import Array
from models.packs.target import Target, host_target
from models.progress import Progress, silent
from models.runtime.heap import trim_heap
from models.runtime.sessions import SessionError, open_session, reason, session_options

_ALIGNMENT = 64
_Level = ort.GraphOptimizationLevel


def optimise(
    model: onnx.ModelProto,
    path: Path,
    folder: Path,
    target: Target | None = None,
    progress: Progress = silent,
) -> tuple[onnx.ModelProto, Graph]:
    """Return the optimised model and the graph that the compiler works on.

    Args:
        model: from ``read_onnx``; its weights leave the message.
        path: the source, for messages.
        folder: an empty folder for intermediate files.
        target: what it is optimised for; None: this machine's CPU.
        progress: is told what ONNX Runtime is doing.

    Raises:
        OnnxError: the model is not valid, or has an operator that ONNX Runtime does not know.
        CompileError: an input or output has a type that no request can carry.
    """
    target = target or host_target()
    for_cpu = target.capability is None
    source = folder / "source.onnx"
    _move_weights(model, source.with_suffix(".data"))
    check(model, folder / "checked.onnx", path)
    check_scales(model, path)
    if for_cpu:
        rewrite(model)
    source.write_bytes(model.SerializeToString())
    # In two steps, since each rewrites most weights (batch norms folded, layouts blocked) and holds what
    # it rewrote. The second also folds what the first inserted: casts of weights, bodies of functions.
    progress("optimise", "folding what is constant")
    result = _optimised(source, folder / "folded.onnx", _Level.ORT_ENABLE_BASIC, path)
    _check_folded(result, path, target.block if for_cpu else 1)
    result, dequantised = _without_integers(result, path, target)
    progress("optimise", f"for {target.isa}")
    level = _Level.ORT_ENABLE_ALL if for_cpu else _Level.ORT_ENABLE_BASIC
    without = QUANTISES_WEIGHTS if dequantised else ""
    result = _optimised(result, folder / "optimised.onnx", level, path, without)
    optimised = onnx.load(result, load_external_data=False)
    move_out(optimised)
    tensors = take_tensors(optimised, folder)
    copy_constant_outputs(optimised)
    take_crops_apart(optimised)
    placed = _values(optimised, path, folder).placed
    while settle_pool(optimised, {name: array.shape for name, array in placed.items()}):
        placed = _values(optimised, path, folder).placed
    shapes = {name: array.shape for name, array in placed.items()}
    stay_blocked(optimised, shapes, target.block)
    if for_cpu:
        along_rows(optimised, shapes)
    constants = _constants(optimised, folder)
    graph = _graph(optimised, constants, path, folder)
    _check_shapes(optimised, graph.values, path)
    store_by_row(optimised, graph.values, constants)
    nodes = tuple(live(optimised))
    return optimised, replace(graph, nodes=nodes, tensors=tensors, dequantised=dequantised)


def _without_integers(folded: Path, path: Path, target: Target) -> tuple[Path, dict[str, str]]:
    """Return a file with the model in ``folded`` without constants that no kernel reads as integers.

    And which these were (models/compiler/optimising/integers/floats.py).
    """
    folder, for_cpu = folded.parent, target.capability is None
    model = onnx.load(folded, load_external_data=False)
    if not find_integers(model, folder):
        return folded, {}
    if target.isa.startswith("x86"):
        make_unsigned(model)
        limit_integers(model)
    folded.write_bytes(model.SerializeToString())
    if for_cpu:
        folded = _optimised(folded, folder / "fused.onnx", _Level.ORT_ENABLE_EXTENDED, path)
        model = onnx.load(folded, load_external_data=False)
    try:
        found = make_floats(model, folder)
    except SessionError as exc:
        raise OnnxError(f"{path}: ONNX Runtime refuses it: {reason(exc)}") from exc
    if found:
        folded.write_bytes(model.SerializeToString())
        _check_folded(folded, path, target.block if for_cpu else 1)
    return folded, found


def _check_folded(result: Path, path: Path, block: int) -> None:
    """Check the shapes of the model in ``result``: its nodes have the names that users know.

    Then say in convolutions what is better said so (models/compiler/optimising/dense.py).

    In the source nodes may contradict each other that ONNX Runtime never runs: only their shape is read.
    """
    model = onnx.load(result, load_external_data=False)
    placed = _values(model, path, result.parent).placed
    trim_heap()
    _check_shapes(model, placed, path)
    if as_convolutions(model, placed, block):
        result.write_bytes(model.SerializeToString())


def _check_shapes(model: onnx.ModelProto, values: Mapping[str, Array], path: Path) -> None:
    shapes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    shapes |= {name: array.shape for name, array in values.items()}
    check_agreement(live(model), shapes, path)


def write_reference(model: onnx.ModelProto, folder: Path) -> Path:
    """Write ``model``, from ``read_onnx``, as a file in ``folder`` with its weights beside it; return it.

    ONNX Runtime maps the weights. Nodes without a name get one, so that its errors can say which failed.
    """
    file = folder / "reference.onnx"
    _move_weights(model, file.with_suffix(".data"))
    for graph in all_graphs(model.graph):
        for node in graph.node:
            node.name = node.name or next(iter(made(node)), "")
    file.write_bytes(model.SerializeToString())
    return file


def fold(model: onnx.ModelProto, folder: Path, path: Path) -> Path:
    """Return a file in ``folder`` with ``model``, from ``read_onnx``, and what is constant in it folded.

    Raises:
        OnnxError: as ``optimise``; messages call the model ``path``.
    """
    file = write_reference(model, folder)
    check(model, folder / "checked.onnx", path)
    return _optimised(file, folder / "folded.onnx", _Level.ORT_ENABLE_BASIC, path)


def _move_weights(model: onnx.ModelProto, data: Path) -> None:
    """Write all large weights of ``model`` to the file ``data``; the message refers to them there."""
    with data.open("wb") as file:
        for tensor in model.graph.initializer:
            held = reference(tensor)
            if held is None and len(tensor.raw_data) <= INSIDE_BYTES:
                continue
            file.write(bytes(-file.tell() % _ALIGNMENT))
            offset = file.tell()
            if held is None:
                file.write(tensor.raw_data)
            else:
                copy_range(held, file)
            refer(tensor, FileRange(data, offset, file.tell() - offset), data.name)


def _optimised(
    source: Path, result: Path, level: ort.GraphOptimizationLevel, path: Path, without: str = ""
) -> Path:
    """Let ONNX Runtime rewrite ``source`` as ``result``; ``source`` is removed.

    ``without``: the one of its optimisers that does nothing.
    """
    options = session_options(optimise=True)
    options.graph_optimization_level = level
    options.optimized_model_filepath = str(result)
    options.enable_cpu_mem_arena = False
    options.add_session_config_entry("session.disable_prepacking", "1")
    options.add_session_config_entry("optimization.disable_specified_optimizers", without)
    key = "session.optimized_model_external_initializers_"
    options.add_session_config_entry(f"{key}file_name", result.with_suffix(".data").name)
    options.add_session_config_entry(f"{key}min_size_in_bytes", str(INSIDE_BYTES))
    try:
        open_session(str(source), options)
    except SessionError as exc:
        # ONNX Runtime has no error of its own for a full disk.
        needed = sum(file.stat().st_size for file in source.parent.glob(f"{source.stem}.*"))
        if shutil.disk_usage(result.parent).free < needed:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from exc
        raise OnnxError(f"{path}: ONNX Runtime refuses it: {reason(exc)}") from exc
    for file in (source, source.with_suffix(".data")):
        file.unlink(missing_ok=True)
    written = onnx.load(result, load_external_data=False)
    if rename_inner(written):
        result.write_bytes(written.SerializeToString())
    trim_heap()
    return result


def _constants(model: onnx.ModelProto, folder: Path) -> dict[str, NDArray[Any]]:
    """Return the initializers of ``model``, which lies in ``folder``; large ones are mapped."""
    constants: dict[str, NDArray[Any]] = {}
    for tensor in model.graph.initializer:
        if not has_dtype(tensor):
            continue
        held = reference(tensor)
        if held is None:
            constants[tensor.name] = numpy_helper.to_array(tensor)
            continue
        constants[tensor.name] = np.memmap(
            folder / held.path,
            helper.tensor_dtype_to_np_dtype(tensor.data_type),
            "r",
            held.offset,
            tuple(tensor.dims),
        )
    return constants


def _graph(
    model: onnx.ModelProto, constants: dict[str, NDArray[Any]], path: Path, folder: Path
) -> Graph:
    types = _values(model, path, folder)
    check_ports(model, types, path)
    return Graph(
        nodes=tuple(live(model)),
        values=types.placed,
        constants=constants,
        inputs=tuple(value.name for value in model.graph.input),
        outputs=tuple(value.name for value in model.graph.output),
        opsets=tuple(_used_opsets(model)),
        loose=types.loose,
        ir_version=model.ir_version,
    )


def _used_opsets(model: onnx.ModelProto) -> list[onnx.OperatorSetIdProto]:
    used = {domain for node in model.graph.node for domain in domains(node)} | {""}
    return [item for item in model.opset_import if item.domain in used]


def _values(model: onnx.ModelProto, path: Path, folder: Path) -> ValueTypes:
    """Ask ONNX Runtime for dtype and shape of every value: it alone knows its own operators."""
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    known = {value.name for value in probe.graph.output}
    for node in probe.graph.node:
        for name in node.output:
            if name and name not in known:
                probe.graph.output.add().name = name
    options = session_options(optimise=False)
    options.add_session_config_entry("session.disable_prepacking", "1")
    file = folder / "probe.onnx"  # beside the weights that it refers to

    def open_model(asked: onnx.ModelProto) -> ort.InferenceSession:
        file.write_bytes(asked.SerializeToString())
        try:
            return open_session(str(file), options)
        except SessionError as exc:
            raise CompileError(f"{path}: its optimised graph does not load: {reason(exc)}") from exc

    return value_types(probe, open_model)
