"""Read an untrusted ONNX file: parse, validate, load external data, inline functions, fix shapes.

Invariant: the graph returned has static shapes on every input, no constant among its inputs but small
defaults (models/graphs/inputs.py), and weights that were checked: in memory, or, large ones, mapped from
files that were there. Until the message becomes a graph they are references (models/graphs/file.py).
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import onnx
from google.protobuf.message import DecodeError
from onnx.inliner import inline_local_functions

from models.errors import OnnxError
from models.graphs.file import FileRange, all_tensors, parse_onnx, take_tensors
from models.graphs.graph import Graph
from models.graphs.inputs import Warn, fix_inputs, keep_defaults
from models.graphs.metadata import Metadata, picture_of, read_metadata
from models.graphs.nodes import subgraphs
from models.graphs.reader import UnreadableError, graph_of
from models.graphs.shapes import fix_dimensions, shape_choices
from models.graphs.tidy import lift_constants, lower_versions, tidy
from models.network.names import domain_of, named, op_of
from models.sizes import Lengths

# Outputs that an error lists.
_MAX_LISTED = 10
_AGAIN = "copy it again, or export one"


@dataclass(frozen=True)
class NetworkFile:
    """What a file is: its network, and what it says about itself beyond ONNX.

    ``shapes``: in how many shapes it was wanted.
    """

    graph: Graph
    metadata: Metadata
    shapes: int = 1


@dataclass(frozen=True)
class ReadOptions:
    """How a file is read.

    ``batch``: what unknown first dimensions become; None: 1. ``shapes``: whole shapes by input name, for
    inputs whose other dimensions are unknown too, and lengths by the name of a dimension; ``choice``: which
    of them it has, where there are several, counted from the largest. ``keep_inputs``: inputs with a value
    that stay inputs, though they look like weights. ``without_outputs``: outputs that are left out.
    ``warn`` is called with a line for what a user should know.
    """

    batch: int | None = None
    shapes: Mapping[str, Lengths] = field(default_factory=dict)
    choice: int = 0
    keep_inputs: tuple[str, ...] = ()
    without_outputs: tuple[str, ...] = ()
    warn: Warn = lambda text: None


_AS_IT_IS = ReadOptions()


def read_graph(
    path: Path,
    options: ReadOptions = _AS_IT_IS,
    picture: Sequence[int] = (),
    configured: Sequence[int] = (),
) -> NetworkFile:
    """Return what is in ``path``; arguments and errors are those of ``read_onnx``.

    The nodes and constants that only outputs which are left out need are not in it.

    Raises:
        OnnxError: moreover, an entry of its metadata is not what it should be.
    """
    model, count = _read(path, options, picture, configured)
    try:
        graph = graph_of(model)
    except UnreadableError as exc:
        raise OnnxError(f"{path}: not valid: {exc}") from exc
    graph = graph.without_dead() if options.without_outputs else graph
    return NetworkFile(graph, read_metadata(model, path, options.warn), count)


def read_onnx(
    path: Path,
    options: ReadOptions = _AS_IT_IS,
    picture: Sequence[int] = (),
    configured: Sequence[int] = (),
) -> onnx.ModelProto:
    """Read and validate the model in ``path`` and fix the shapes of its inputs.

    Args:
        path: the ONNX file; external data is looked for beside it, never above it.
        options: what the user decides; nodes of outputs that are left out stay.
        picture: the shape of pictures, which give the one input what it leaves open; empty: as the exporter
            of the file says it.
        configured: the same as a configuration file has it, where the exporter says nothing.

    Raises:
        OnnxError: the file is missing, is not ONNX, has no nodes, refers to missing or outside data, has
            impossible dimensions, an input whose shape stays unknown, no use for the batch, no output of a
            name that is left out, or functions that cannot be inlined.
    """
    return _read(path, options, picture, configured)[0]


def _read(
    path: Path, options: ReadOptions, picture: Sequence[int], configured: Sequence[int]
) -> tuple[onnx.ModelProto, int]:
    """Do as ``read_onnx``; return also in how many shapes the model was wanted."""
    warn = options.warn
    model, ranges = _parse(path)
    if not _is_text(model):
        raise OnnxError(f"{path}: a name in it is not UTF-8")
    _leave_out(path, model, options.without_outputs)
    take_tensors(path, model, ranges)
    if model.functions:
        model = _inlined(path, model, warn)
    for node in _all_nodes(model.graph.node):
        if any(attribute.ref_attr_name for attribute in node.attribute):
            raise OnnxError(
                f"{path}: node {node.name!r}: refers to an attribute outside of functions"
            )
    tidy(path, model)
    lower_versions(model)
    keep_defaults(path, model, warn, options.keep_inputs)
    lift_constants(model)
    picture = picture or picture_of(model) or configured
    choices = shape_choices(path, model, options.shapes)
    fix_dimensions(model, choices[options.choice].lengths)
    fix_inputs(path, model, options.batch, choices[options.choice].shapes, picture, warn)
    return model, len(choices)


def _leave_out(path: Path, model: onnx.ModelProto, names: Collection[str]) -> None:
    """Remove the outputs ``names`` of ``model``.

    Raises:
        OnnxError: it has no output of such a name, or no others.
    """
    outputs = [value.name for value in model.graph.output]
    for name in names:
        if name not in outputs:
            listed = ", ".join(map(repr, outputs[:_MAX_LISTED]))
            raise OnnxError(f"{path}: no output called {name!r} to leave out; there is {listed}")
    others = [value for value in model.graph.output if value.name not in names]
    if not others:
        raise OnnxError(f"{path}: without {', '.join(map(repr, names))} there is no output")
    del model.graph.output[:]
    model.graph.output.extend(others)


def source_files(path: Path) -> list[Path]:
    """Return ``path``, an ONNX file, and the files of weights that it refers to.

    Raises:
        OnnxError: it is missing, or is not ONNX.
    """
    model, _ = _parse(path)
    paths = (
        path.parent / entry.value
        for tensor in all_tensors(model)
        for entry in tensor.external_data
        if entry.key == "location"
    )
    return list(dict.fromkeys((path, *(file for file in paths if file != path.absolute()))))


def _parse(path: Path) -> tuple[onnx.ModelProto, dict[int, FileRange]]:
    try:
        model, ranges = parse_onnx(path)
    except OSError as exc:
        raise OnnxError(f"{path}: {exc.strerror or exc}") from exc
    except (DecodeError, ValueError) as exc:
        raise OnnxError(f"{path}: not an ONNX model ({exc}); {_AGAIN}") from exc
    if not model.ir_version or not model.HasField("graph"):
        raise OnnxError(f"{path}: not an ONNX model (it has no IR version or no graph); {_AGAIN}")
    if not model.graph.output:
        raise OnnxError(f"{path}: the graph has no outputs")
    if not model.graph.node:
        raise OnnxError(
            f"{path}: the graph has no nodes: its outputs are its inputs or constants, nothing is computed"
        )
    return model, ranges


def _is_text(model: onnx.ModelProto) -> bool:
    """Return whether every name that is used is UTF-8; protobuf gives bytes, or fails, for others."""
    try:
        return all(isinstance(text, str) for text in _texts(model))
    except UnicodeDecodeError:
        return False


def _texts(model: onnx.ModelProto) -> Iterator[str]:
    nodes = list(model.graph.node)
    yield from (item.domain for item in model.opset_import)
    for function in model.functions:
        nodes += (*function.node, onnx.NodeProto(attribute=function.attribute_proto))
        yield from (item.domain for item in function.opset_import)
        yield from (function.name, function.domain, function.overload)
        yield from (*function.input, *function.output, *function.attribute)
    for graph in (model.graph, *(body for node in _all_nodes(nodes) for body in subgraphs(node))):
        yield graph.name
        yield from (value.name for value in (*graph.input, *graph.output))
    for node in _all_nodes(nodes):
        yield from (node.op_type, node.domain, node.overload, node.name, *node.input, *node.output)
        for attribute in node.attribute:
            yield from (attribute.name, attribute.ref_attr_name)
    for tensor in all_tensors(model):
        yield tensor.name
        for entry in tensor.external_data:
            yield from (entry.key, entry.value)


def _all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield ``nodes`` and those of the graphs inside them."""
    for node in nodes:
        yield node
        for body in subgraphs(node):
            yield from _all_nodes(body.node)


# Local functions: their nodes stand where they are called from here on.

#: What calls may add to a network; about what a node takes in memory in addition to what it says.
_MAX_ADDED_BYTES, _NODE_BYTES = 256 << 20, 1 << 10


def _inlined(path: Path, model: onnx.ModelProto, warn: Warn) -> onnx.ModelProto:
    """Return ``model``, whose tensors were checked, with the nodes of its functions where they are called.

    Raises:
        OnnxError: functions call each other in a circle, become too large, or are not called as they are.
    """
    _align_versions(path, model, warn)
    if _added_bytes(path, model) > _MAX_ADDED_BYTES:
        raise OnnxError(
            f"{path}: its functions are called so often that their nodes would take more than "
            f"{_MAX_ADDED_BYTES >> 20} MiB"
        )
    try:
        inlined = inline_local_functions(model)
    except (RuntimeError, onnx.checker.ValidationError, DecodeError) as exc:
        reason = str(exc).rpartition("failed: ")[2]
        raise OnnxError(f"{path}: its functions cannot be inlined: {reason}") from exc
    if inlined.functions:
        raise OnnxError(f"{path}: its function {inlined.functions[0].name!r} cannot be inlined")
    return inlined


def _align_versions(path: Path, model: onnx.ModelProto, warn: Warn) -> None:
    """Let functions have the operator sets of ``model``, as in ONNX Runtime, and it all that they have."""
    versions = {domain_of(item.domain): item.version for item in reversed(model.opset_import)}
    others: dict[tuple[str, int], str] = {}
    for function in model.functions:
        for item in function.opset_import:
            key = domain_of(item.domain), item.version
            if versions.setdefault(*key) != item.version:
                others.setdefault(key, function.name)
    for (domain, version), name in others.items():
        warn(
            f"{path}: function {name!r} is of version {version} of the operators of {domain or 'ONNX'}; "
            f"as in ONNX Runtime, it is read as of version {versions[domain]}"
        )
    imports = [
        onnx.OperatorSetIdProto(domain=domain, version=version)
        for domain, version in versions.items()
    ]
    owners: list[onnx.ModelProto | onnx.FunctionProto] = [model, *model.functions]
    for owner in owners:
        del owner.opset_import[:]
        owner.opset_import.extend(imports)


def _added_bytes(path: Path, model: onnx.ModelProto) -> int:
    """Return about how many bytes more it takes to have the nodes of functions where they are called.

    Raises:
        OnnxError: functions call each other in a circle, so that it would never end.
    """
    functions = {_name(function): function for function in model.functions}
    nodes = {name: list(_all_nodes(function.node)) for name, function in functions.items()}
    callers = [list(_all_nodes(model.graph.node)), *nodes.values()]
    calls = [node for caller in callers for node in caller if _called(node) in functions]
    largest = _Largest.of(calls, model.functions)
    sizes: Counter[str] = Counter()
    try:
        needs = {name: {_called(node) for node in nodes[name]} for name in functions}
        for name in TopologicalSorter(needs).static_order():
            if name in functions:
                sizes[name] = functions[name].ByteSize() + sum(map(largest.bytes_of, nodes[name]))
                sizes[name] += sum(sizes[_called(node)] for node in nodes[name])
    except CycleError as exc:
        circle = ", ".join(map(repr, exc.args[1]))
        raise OnnxError(f"{path}: its functions call each other in a circle: {circle}") from exc
    there = sum(function.ByteSize() for function in model.functions)
    return sum(sizes[_called(node)] for node in callers[0]) - there


class _Largest(NamedTuple):
    """The bytes of the longest name and of the largest value that calls give to functions."""

    name: int
    value: int

    @classmethod
    def of(
        cls, calls: Sequence[onnx.NodeProto], functions: Sequence[onnx.FunctionProto]
    ) -> "_Largest":
        names = (name for node in calls for name in (*node.input, *node.output))
        values = [item for node in calls for item in node.attribute]
        values += [item for function in functions for item in function.attribute_proto]
        return cls(
            max(map(len, names), default=0), max((item.ByteSize() for item in values), default=0)
        )

    def bytes_of(self, node: onnx.NodeProto) -> int:
        """Return what a node of a function takes at most in addition to what it says there."""
        values = sum(bool(item.ref_attr_name) for item in node.attribute)
        names = len(node.input) + len(node.output)
        return _NODE_BYTES + self.name * names + self.value * values


def _name(function: onnx.FunctionProto) -> str:
    return f"{named(function.domain, function.name)} {function.overload}".strip()


def _called(node: onnx.NodeProto) -> str:
    """Return the function that ``node`` calls, if it calls one."""
    return f"{op_of(node)} {node.overload}".strip()
