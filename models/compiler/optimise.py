"""Let ONNX Runtime optimise a whole model for this machine and read back what it made.

ONNX Runtime uses its blocked (NCHWc) kernels only for constant weights, so it must see the weights
here; the pieces cut from its result later take the reordered weights as inputs.
"""

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from models.compiler.graph import Graph, attributes, label
from models.errors import CompileError, OnnxError
from models.manifest import DTYPES, Array
from models.sessions import SessionError, open_session, session_options

# Smaller constants stay inside the message: ONNX Runtime infers shapes from some, and only from there.
_SMALL_BYTES = 1024

_SHAPE_UNKNOWN = "has a shape that is known only at run time"


def optimise(model: onnx.ModelProto, path: Path, folder: Path) -> tuple[onnx.ModelProto, Graph]:
    """Return the optimised model and the graph that the compiler works on.

    Args:
        model: from ``read_onnx``; its weights leave the message.
        path: the source, for messages.
        folder: an empty folder for intermediate files.

    Raises:
        OnnxError: the model is not valid, or has an operator that ONNX Runtime does not know.
        CompileError: something in it cannot be streamed (control flow, dynamic inner shapes).
    """
    source = folder / "source.onnx"
    onnx.save(
        model,
        source,
        save_as_external_data=True,
        location="source.data",
        size_threshold=_SMALL_BYTES,
    )
    try:
        onnx.checker.check_model(source)
    except onnx.checker.ValidationError as exc:
        raise OnnxError(f"{path}: not valid: {_one_line(exc)}") from exc
    optimised = _optimised(source, path, folder)
    _refuse_subgraphs(optimised, path)
    _transpose_matrices(optimised)
    return optimised, _graph(optimised, path)


def _optimised(source: Path, path: Path, folder: Path) -> onnx.ModelProto:
    result = folder / "optimised.onnx"
    options = session_options(optimise=True)
    options.optimized_model_filepath = str(result)
    key = "session.optimized_model_external_initializers_"
    options.add_session_config_entry(f"{key}file_name", "optimised.data")
    options.add_session_config_entry(f"{key}min_size_in_bytes", str(_SMALL_BYTES))
    try:
        open_session(str(source), options)
    except SessionError as exc:
        # ONNX Runtime has no error of its own for a full disk.
        needed = sum(file.stat().st_size for file in folder.glob("source.*"))
        if shutil.disk_usage(folder).free < needed:
            raise CompileError(f"{result}: cannot write the pack: No space left on device") from exc
        raise OnnxError(f"{path}: ONNX Runtime refuses it: {_one_line(exc)}") from exc
    return onnx.load(result)


def _one_line(exc: Exception) -> str:
    text = re.sub(r"\s+", " ", str(exc)).strip()
    return re.sub(r"^\[ONNXRuntimeError\] : \d+ : (\w+) : ", r"\1: ", text)[:400]


def _refuse_subgraphs(model: onnx.ModelProto, path: Path) -> None:
    for node in model.graph.node:
        if any(item.HasField("g") or item.graphs for item in node.attribute):
            raise CompileError(
                f"{path}: node {label(node)!r}: control flow ({node.op_type}) cannot be streamed"
            )


def _transpose_matrices(model: onnx.ModelProto) -> None:
    """Store constant matrices of fully connected layers by output row, so that they can be split.

    ``Gemm`` with transB=0 becomes transB=1. ``MatMul`` keeps its operator and stays whole.
    """
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    uses: dict[str, int] = {}
    for node in model.graph.node:
        for name in node.input:
            uses[name] = uses.get(name, 0) + 1
    for node in model.graph.node:
        if node.op_type not in ("Gemm", "FusedGemm") or attributes(node).get("transB", 0):
            continue
        tensor = constants.get(node.input[1])
        if tensor is None or uses[tensor.name] != 1:
            continue
        matrix = np.ascontiguousarray(numpy_helper.to_array(tensor).T)
        tensor.CopyFrom(numpy_helper.from_array(matrix, tensor.name))
        kept = [item for item in node.attribute if item.name != "transB"]
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute("transB", 1)])


def _graph(model: onnx.ModelProto, path: Path) -> Graph:
    constants: dict[str, NDArray[Any]] = {
        tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer
    }
    for name, constant in constants.items():
        if constant.dtype.name not in DTYPES:
            raise CompileError(f"{path}: constant {name!r} has type {constant.dtype.name}")
    graph = Graph(
        nodes=tuple(_live(model)),
        values=_values(model, path),
        constants=constants,
        inputs=tuple(value.name for value in model.graph.input),
        outputs=tuple(value.name for value in model.graph.output),
        opsets=tuple(_used_opsets(model)),
    )
    for name in graph.outputs:
        if name not in graph.values:
            raise CompileError(f"{path}: output {name!r} is a constant")
    return graph


def _live(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """Return the nodes that an output depends on: ONNX Runtime keeps others, too."""
    wanted = {value.name for value in model.graph.output}
    kept = []
    for node in reversed(model.graph.node):
        if wanted.intersection(node.output):
            kept.append(node)
            wanted.update(node.input)
    return kept[::-1]


def _used_opsets(model: onnx.ModelProto) -> list[onnx.OperatorSetIdProto]:
    used = {node.domain for node in model.graph.node} | {""}
    return [item for item in model.opset_import if item.domain in used]


def _values(model: onnx.ModelProto, path: Path) -> dict[str, Array]:
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
    try:
        session = open_session(probe.SerializeToString(), options)
    except SessionError as exc:
        raise CompileError(f"{path}: its optimised graph does not load: {_one_line(exc)}") from exc
    constants = {tensor.name for tensor in model.graph.initializer}
    return {
        port.name: _array(port.name, port.type, port.shape, path)
        for port in (*session.get_inputs(), *session.get_outputs())
        if port.name not in constants
    }


_ELEMENT_TYPES = {"float": "float32", "double": "float64"}


def _array(name: str, type_name: str, shape: list[int | str | None], path: Path) -> Array:
    element = type_name.removeprefix("tensor(").removesuffix(")")
    dims = tuple(dim for dim in shape if isinstance(dim, int))
    if len(dims) != len(shape):
        raise CompileError(f"{path}: value {name!r} {_SHAPE_UNKNOWN}: {shape}")
    try:
        dtype = _ELEMENT_TYPES.get(element) or helper.tensor_dtype_to_np_dtype(
            TensorProto.DataType.Value(element.upper())
        )
        return Array(dtype=np.dtype(dtype).name, shape=dims)
    except (KeyError, ValueError, TypeError) as exc:
        raise CompileError(f"{path}: value {name!r} has type {type_name}") from exc
