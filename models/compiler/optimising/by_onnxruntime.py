"""What ONNX Runtime does of the work: it rewrites models, file by file, and knows the types of all values.

Weights lie in files beside: ONNX Runtime maps them.
"""

import errno
import os
import shutil
from pathlib import Path

import onnx
import onnxruntime as ort

from models.compiler.analysis.types import ValueTypes, value_types
from models.compiler.optimising.bodies import rename_inner
from models.compiler.optimising.node_order import settle_order
from models.errors import CompileError, OnnxError
from models.graphs.file import INSIDE_BYTES, FileRange, aligned, copy_range, refer, reference
from models.graphs.nodes import all_graphs, made, subgraphs
from models.runtime.heap import trim_heap
from models.runtime.sessions import SessionError, open_session, reason, session_options

# Moves scales past a Reshape; where a body of If or Loop reads what that makes, ONNX Runtime 1.31 aborts.
_MOVES_SCALES = "QDQPropagationTransformer"


def write_reference(model: onnx.ModelProto, folder: Path) -> Path:
    """Write ``model``, from ``read_onnx``, as a file in ``folder`` with its weights beside it; return it.

    ONNX Runtime maps the weights. Nodes without a name get one, so that its errors can say which failed.
    """
    file = folder / "reference.onnx"
    move_weights(model, file.with_suffix(".data"))
    for graph in all_graphs(model.graph):
        for node in graph.node:
            node.name = node.name or next(iter(made(node)), "")
    file.write_bytes(model.SerializeToString())
    return file


def move_weights(model: onnx.ModelProto, data: Path) -> None:
    """Write all large weights of ``model`` to the file ``data``; the message refers to them there."""
    with data.open("wb") as file:
        for tensor in model.graph.initializer:
            held = reference(tensor)
            if held is None and len(tensor.raw_data) <= INSIDE_BYTES:
                continue
            offset = aligned(file)
            if held is None:
                file.write(tensor.raw_data)
            else:
                copy_range(held, file)
            refer(tensor, FileRange(data, offset, file.tell() - offset), data.name)


def optimised_file(
    source: Path, result: Path, level: ort.GraphOptimizationLevel, path: Path, without: str = ""
) -> Path:
    """Let ONNX Runtime rewrite ``source`` as ``result``; ``source`` is removed.

    ``without``: those of its optimisers that do nothing, with semicolons between.
    """
    given = onnx.load(source, load_external_data=False)
    if any(True for node in given.graph.node for _ in subgraphs(node)):
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
    settle_order(written, given)
    rename_inner(written)
    result.write_bytes(written.SerializeToString())
    for file in (source, source.with_suffix(".data")):
        file.unlink(missing_ok=True)
    trim_heap()
    return result


def types_of(model: onnx.ModelProto, path: Path, folder: Path) -> ValueTypes:
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
