"""What ONNX Runtime does of the work: it rewrites models, file by file, and infers the types of all values.

Weights lie in files beside: ONNX Runtime maps them.
"""

import errno
import os
import shutil
from pathlib import Path

import onnx
import onnxruntime as ort

from models.compiler.analysis.graph import ValueTypes, value_types
from models.compiler.optimising.bodies import rename_inner
from models.compiler.optimising.model_checks import check
from models.errors import CompileError, OnnxError
from models.graphs.file import INSIDE_BYTES, FileRange, aligned, copy_range, refer, reference
from models.graphs.nodes import name_nodes, subgraphs
from models.runtime.heap import trim_heap
from models.runtime.sessions import SessionError, open_session, reason, session_options

# Moves scales past a Reshape; where a body of If or Loop reads what that makes, ONNX Runtime 1.31 aborts.
_MOVES_SCALES = "QDQPropagationTransformer"


def write_reference(model: onnx.ModelProto, folder: Path) -> Path:
    """Write ``model``, from ``read_onnx``, as a file in ``folder`` with its weights beside it; return it.

    ONNX Runtime maps the weights.
    """
    file = folder / "reference.onnx"
    move_weights(model, file.with_suffix(".data"))
    file.write_bytes(model.SerializeToString())
    return file


def move_weights(model: onnx.ModelProto, data: Path) -> None:
    """Write all large weights of ``model`` to the file ``data``; the message refers to them there."""
    with data.open("wb") as file:
        for tensor in model.graph.initializer:
            place = reference(tensor)
            if place is None and len(tensor.raw_data) <= INSIDE_BYTES:
                continue
            offset = aligned(file)
            if place is None:
                file.write(tensor.raw_data)
            else:
                copy_range(place, file)
            refer(tensor, FileRange(data, offset, file.tell() - offset), data.name)


def optimise_model(
    model: onnx.ModelProto,
    source: Path,
    result: Path,
    level: ort.GraphOptimizationLevel,
    path: Path,
    without: str = "",
) -> onnx.ModelProto:
    """Return what ONNX Runtime makes of ``model``; its large weights have the name of ``result`` then.

    Args:
        model: its nodes get names where they have none.
        source: the file that it becomes meanwhile; it is removed, with the weights of its name.
        result: the file that ONNX Runtime writes.
        level: which optimisers.
        path: the source of the network, for messages.
        without: those optimisers that do nothing, with semicolons between.

    Raises:
        OnnxError: ONNX Runtime refuses it.
    """
    name_nodes(model)  # passes, and ONNX Runtime itself, insert some without
    source.write_bytes(model.SerializeToString())
    if any(True for node in model.graph.node for _ in subgraphs(node)):
        without = ";".join(filter(None, (without, _MOVES_SCALES)))
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
    written = onnx.load(result, load_external_data=False)
    rename_inner(written)
    for file in (source, source.with_suffix(".data")):
        file.unlink(missing_ok=True)
    trim_heap()
    return written


def fold(model: onnx.ModelProto, folder: Path, path: Path) -> Path:
    """Return a file in ``folder`` with ``model``, from ``read_onnx``, and what is constant in it folded.

    Raises:
        OnnxError: it is not valid, or ONNX Runtime refuses it; messages call it ``path``.
    """
    source, result = write_reference(model, folder), folder / "folded.onnx"
    check(model, folder / "checked.onnx", path)
    level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    folded = optimise_model(model, source, result, level, path)
    result.write_bytes(folded.SerializeToString())
    return result


def types_of(model: onnx.ModelProto, path: Path, folder: Path) -> ValueTypes:
    """Ask ONNX Runtime for dtype and shape of every value: no other tool has its own operators."""
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
