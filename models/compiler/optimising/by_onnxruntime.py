"""What ONNX Runtime does of the work: it rewrites models, file by file, and infers the types of all values.

Weights lie in files next to them, which ONNX Runtime maps.
"""

import errno
import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import onnx
import onnxruntime as ort
from onnx import TensorProto

from models.compiler.optimising.bodies import OpenLengths, rename_inner
from models.compiler.optimising.by_onnx import check
from models.compiler.optimising.exact_sums import ExactSums
from models.compiler.optimising.refused_nodes import refusal
from models.errors import CompileError, OnnxError
from models.graphs.graph import DynamicValue, Graph, ValueTypes, with_weights_in
from models.graphs.nodes import name_nodes
from models.graphs.order import fresh
from models.graphs.ranges import INSIDE_BYTES
from models.graphs.reader import dtype_of, graph_at
from models.graphs.writer import model_of, node_of
from models.network.fields import STRINGS, UNKNOWN, Array
from models.network.names import Op
from models.network.node import Node
from models.packs.target import host_target
from models.runtime.heap import trim_heap
from models.runtime.sessions import SessionError, open_session, reason, session_options

# Moves scales past a Reshape; where a body of If or Loop reads what that makes, ONNX Runtime 1.31 aborts.
_MOVES_SCALES = "QDQPropagationTransformer"


def write_reference(graph: Graph, folder: Path) -> Path:
    """Write ``graph`` as a file in ``folder``, next to its weights, which ONNX Runtime maps; return it."""
    file = folder / "reference.onnx"
    graph = ExactSums(graph, host_target().exact_weights, folder).run()
    graph = with_weights_in(graph, file.with_suffix(".data"))
    file.write_bytes(model_of(with_open_branches(graph, folder), folder).SerializeToString())
    return file


def with_open_branches(graph: Graph, folder: Path) -> Graph:
    """Return ``graph``; with open lengths in branches (``OpenLengths``), if it loads only so.

    Mapped constants of ``graph`` lie in ``folder``.
    """
    if all(node.operator != Op.If for node in graph.nodes) or _loads(graph, folder):
        return graph
    opened = OpenLengths(graph).run()
    return opened if _loads(opened, folder) else graph


def _loads(graph: Graph, folder: Path) -> bool:
    """Return whether ONNX Runtime loads and optimises ``graph``.

    With its optimisations, which follow conditions that lengths decide: in a branch that is for other
    lengths they may find a rank that an operator refuses, where loading alone finds none.
    """
    file = folder / "loaded.onnx"  # next to the weights that it refers to
    model = model_of(graph, folder)
    name_nodes(model)
    file.write_bytes(model.SerializeToString())
    options = session_options(optimise=True)
    options.enable_cpu_mem_arena = False
    options.add_session_config_entry("session.disable_prepacking", "1")
    options.add_session_config_entry("optimization.disable_specified_optimizers", _MOVES_SCALES)
    try:
        open_session(str(file), options)
    except SessionError:
        return False
    finally:
        file.unlink()
        trim_heap()
    return True


def optimised(
    graph: Graph,
    source: Path,
    result: Path,
    level: ort.GraphOptimizationLevel,
    path: Path,
    without: str = "",
) -> Graph:
    """Return what ONNX Runtime makes of ``graph``; its large weights have the name of ``result`` then.

    Args:
        graph: its mapped weights lie next to ``source``.
        source: the file that it becomes meanwhile; it is removed, with the weights of its name.
        result: the file that ONNX Runtime writes.
        level: which optimisers.
        path: the source of the network, for messages.
        without: those optimisers that do nothing, with semicolons between.

    Raises:
        OnnxError: ONNX Runtime refuses it.
    """
    model = model_of(graph, source.parent)
    name_nodes(model)  # passes, and ONNX Runtime itself, insert some without
    source.write_bytes(model.SerializeToString())
    del model
    if any(node.bodies for node in graph.nodes):
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
        raise OnnxError(f"{path}: ONNX Runtime refuses it: {refusal(graph, reason(exc))}") from exc
    written = rename_inner(graph_at(result))
    for file in (source, source.with_suffix(".data")):
        file.unlink(missing_ok=True)
    trim_heap()
    return replace(written, dequantised=graph.dequantised)


def fold(graph: Graph, folder: Path, path: Path) -> Path:
    """Return a file in ``folder`` with ``graph``, and what is constant in it folded.

    Raises:
        OnnxError: it is not valid, or ONNX Runtime refuses it; messages call it ``path``.
    """
    source, result = folder / "reference.onnx", folder / "folded.onnx"
    graph = with_weights_in(graph, source.with_suffix(".data"))
    check(graph, folder / "checked.onnx", path)
    graph = with_open_branches(graph, folder)
    folded = optimised(graph, source, result, ort.GraphOptimizationLevel.ORT_ENABLE_BASIC, path)
    result.write_bytes(model_of(folded, folder).SerializeToString())
    return result


def types_of(graph: Graph, path: Path, folder: Path) -> ValueTypes:
    """Ask ONNX Runtime for dtype and shape of every value: no other tool has its own operators.

    Mapped constants of ``graph`` lie in ``folder``.
    """
    probe = model_of(graph, folder)
    known = set(graph.outputs)
    for node in graph.nodes:
        for name in node.made:
            if name not in known:
                probe.graph.output.add().name = name
    options = session_options(optimise=False)
    options.add_session_config_entry("session.disable_prepacking", "1")
    file = folder / "probe.onnx"  # next to the weights that it refers to

    def open_model(asked: onnx.ModelProto) -> ort.InferenceSession:
        file.write_bytes(asked.SerializeToString())
        try:
            return open_session(str(file), options)
        except SessionError as exc:
            raise CompileError(f"{path}: its optimised graph does not load: {reason(exc)}") from exc

    return value_types(probe, open_model)


# Types: which values have a place in the arena, which cannot.

OpenModel = Callable[[onnx.ModelProto], ort.InferenceSession]


def value_types(probe: onnx.ModelProto, open_model: OpenModel) -> ValueTypes:
    """Return the types of inputs and outputs of ``probe``, whose outputs are all its values.

    ``open_model`` may be called twice: ONNX Runtime gives an unknown rank and a scalar the same empty
    shape, and only the shape of its shape distinguishes them.
    """
    session = open_model(probe)
    types = {
        port.name: typed(port.name, port.type, port.shape)
        for port in (*session.get_inputs(), *session.get_outputs())
    }
    # The inputs' ranks are declared; those of the others are ONNX Runtime's.
    computed = {port.name for port in session.get_outputs()} - {
        p.name for p in session.get_inputs()
    }
    del session
    scalars = [
        name for name in computed if isinstance(types[name], Array) and not _shape(types[name])
    ]
    for name in _unknown_ranks(probe, sorted(scalars), open_model):
        types[name] = DynamicValue(
            f"value {name!r} has a rank that is known only at run time", None
        )
    return ValueTypes(
        {name: item for name, item in types.items() if isinstance(item, Array)},
        {name: item for name, item in types.items() if isinstance(item, DynamicValue)},
    )


def _shape(item: Array | DynamicValue) -> tuple[int, ...]:
    return item.shape if isinstance(item, Array) else (UNKNOWN,)


def typed(name: str, type_name: str, shape: list[int | str | None]) -> Array | DynamicValue:
    """Return what a value is, from ONNX Runtime's words for its type and its dimensions."""
    element = _element(type_name)
    if element is None:
        return DynamicValue(f"value {name!r} has type {type_name}", None, type_name)
    # ONNX Runtime writes -1 for a dimension without a name.
    dims = tuple(dim if isinstance(dim, int) and dim >= 0 else UNKNOWN for dim in shape)
    array = Array(dtype=element, shape=dims)
    if element == STRINGS:
        return DynamicValue(f"value {name!r} has type {type_name}", array)
    if UNKNOWN in dims:
        shown = "[" + ", ".join("?" if dim == UNKNOWN else str(dim) for dim in dims) + "]"
        return DynamicValue(
            f"value {name!r} has a shape that is known only at run time: {shown}", array
        )
    return array


def _element(type_name: str) -> str | None:
    """Return the dtype of a tensor type such as "tensor(float)", None where NumPy has none."""
    if not type_name.startswith("tensor("):
        return None
    element = type_name.removeprefix("tensor(").removesuffix(")")
    names = TensorProto.DataType.keys()
    return (
        dtype_of(TensorProto.DataType.Value(element.upper())) if element.upper() in names else None
    )


def _unknown_ranks(
    probe: onnx.ModelProto, names: Iterable[str], open_model: OpenModel
) -> list[str]:
    names = list(names)
    if not names:
        return []
    asked = onnx.ModelProto()
    asked.CopyFrom(probe)
    taken = {value.name for value in (*probe.graph.input, *probe.graph.output)}
    ranks = {name: fresh(f"{name}/rank", taken) for name in names}
    for name, rank in ranks.items():
        asked.graph.node.append(node_of(Node(Op.Shape, (name,), (rank,))))
        asked.graph.output.add().name = rank
    session = open_model(asked)
    known = {port.name for port in session.get_outputs() if port.shape == [0]}
    return [name for name in names if ranks[name] not in known]
