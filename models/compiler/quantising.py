"""From floats to 8-bit integers by ONNX Runtime's static quantisation, calibrated on pictures.

Weights become integers from -127 to 127 with a scale for each output channel, activations unsigned ones
between the least and the largest number that the pictures make. What is a probability, or takes little
time, stays a float; so does what is made of the last layers' answers (a detector's boxes).

Sessions are those of this process: ONNX Runtime's own would have other threads.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnxruntime.quantization import (
    CalibrationDataReader,
    MinMaxCalibrater,
    QDQQuantizer,
    QuantType,
)
from PIL import Image

from models.compiler.optimising.by_onnxruntime import fold
from models.compiler.optimising.rewrite import rewritable
from models.errors import CompileError
from models.graphs.graph import Edits, Graph, all_graphs, is_quantised
from models.graphs.inputs import Warn
from models.graphs.nodes import name_nodes
from models.graphs.reader import graph_at, graph_of, shapes_at
from models.graphs.traits import infinite_arrays
from models.graphs.writer import model_of
from models.images.preprocess import Preprocess
from models.network.catalogue import OPERATORS, traits_of
from models.network.names import Op
from models.network.node import Node
from models.runtime.sessions import open_session, reason, session_options

#: With fewer pictures accuracy depends on which they are (docs/how-to/quantise.md, "8-bit integers").
_FEW = 10
# Of a batch norm: scale, bias, mean and variance.
_NORM_PARAMETERS = 4
# Of pictures: batch, channels, height and width.
_RANK = 4
_PER_CHANNEL_OPSET = 13


def quantise(
    graph: Graph,
    source: Path,
    preprocess: Preprocess | None,
    pictures: Iterable[Image.Image],
    folder: Path,
    warn: Warn = lambda text: None,
) -> Path:
    """Return a file in ``folder``, which is empty, with ``graph`` in 8-bit integers.

    Args:
        graph: the network.
        source: its file, for messages.
        preprocess: makes the input of ``pictures``, which may have any size.
        pictures: about what the network will see.
        folder: keeps what the file refers to.
        warn: is called where pictures are few.

    Raises:
        CompileError: it is quantised already, a weight is not finite, it is not said how a picture becomes
            the one input, there is no picture, a value is no number with one of them, or ONNX Runtime
            cannot quantise it. Whatever ``pictures`` raises.
    """
    _check_floats(graph, source)
    name = _input(graph, source, preprocess)
    folded = fold(graph, folder, source)
    _check_finite(folded, source)
    _make_norms_layers(folded)
    assert preprocess is not None
    operators = [row.name for row in OPERATORS.values() if row.quantisable != "no"]
    ranges = Ranges(folded, operators, folder)
    count = 0
    for picture in pictures:
        count += 1
        try:
            ranges.add({name: preprocess.apply(picture)})
        except RangeError as exc:
            raise CompileError(
                f"{source}: value {str(exc)!r} is NaN or infinite with picture {count}: no scale holds it"
            ) from exc
    _check_count(count, source, warn)
    result = folder / "int8.onnx"
    try:
        write_quantised(folded, ranges, result, _floats(folded))
    except Exception as exc:  # ONNX Runtime's quantiser raises whatever it stumbles over
        raise CompileError(f"{source}: ONNX Runtime cannot quantise it: {reason(exc)}") from exc
    return result


def _make_norms_layers(file: Path) -> None:
    """Make each batch norm of pictures that no convolution has taken up a depthwise one in ``file``.

    ONNX Runtime has no norm of integers: floats would lie in memory, four times as large. With a scale for
    each channel its one weight is exact.
    """
    model, shapes = onnx.load(file, load_external_data=False), shapes_at(file)
    edits = Edits(graph_of(model, file.parent))
    nodes = [
        _as_convolution(node, edits)
        if node.operator == Op.BatchNormalization and len(shapes.get(node.inputs[0], ())) == _RANK
        else node
        for node in edits.graph.nodes
    ]
    written = model_of(edits.applied(nodes), file.parent)
    written.graph.value_info.extend(model.graph.value_info)
    file.write_bytes(written.SerializeToString())


def _as_convolution(node: Node, edits: Edits) -> Node:
    """Return the depthwise convolution that computes a batch norm, if its parameters are constant."""
    names = [name for name in node.inputs[1:] if name in edits.graph.constants]
    if len(names) != _NORM_PARAMETERS or len(node.outputs) != 1:
        return node
    arrays = [edits.graph.constants[name] for name in names]
    gamma, beta, mean, variance = (array.astype(np.float64) for array in arrays)
    values = {**traits_of(node.operator).attributes, **node.attributes}
    weights = gamma / np.sqrt(variance + values["epsilon"])
    operands = {"weights": weights.reshape(-1, 1, 1, 1), "bias": beta - mean * weights}
    added = [
        edits.constant(f"{node.output}/{name}", array.astype(arrays[0].dtype))
        for name, array in operands.items()
    ]
    return edits.graph.node(
        Op.Conv, [node.inputs[0], *added], node.outputs, node.label, group=weights.size
    )


def _floats(file: Path) -> list[str]:
    """Return the nodes that stay floats: those of some activations, and those after the last layers.

    The activations are Mish and others that are rewritten. One of several nodes has one scale before it and
    one behind it, none between them.

    In answers numbers of unlike kinds lie in one tensor (places in pixels, sizes, probabilities), which one
    scale cannot hold, and little is computed.
    """
    graph = graph_at(file)
    nodes = graph.nodes
    activations = [node.label for _, parts in rewritable(graph).values() for node in parts]
    answers = set[str]()  # of layers
    for node in nodes:
        record = traits_of(node.operator)
        is_of_last = record.quantisable == "with_last_layer" and node.inputs[0] in answers
        if record.layer or is_of_last:
            answers.update(node.outputs)
    before = set[str]()  # what layers are made of
    labels = []
    for node in reversed(nodes):
        if traits_of(node.operator).layer or not before.isdisjoint(node.outputs):
            before.update(node.inputs)
        elif answers.isdisjoint(node.outputs):
            labels.append(node.label)
    return [*labels, *activations]


def _check_floats(graph: Graph, source: Path) -> None:
    """Refuse a network that is quantised already."""
    for node in (node for subgraph in all_graphs(graph) for node in subgraph.nodes):
        if is_quantised(node):
            raise CompileError(
                f"{source}: node {node.label!r} ({node.op_type}): it is quantised already; compile it "
                "without --precision int8"
            )


def _input(graph: Graph, source: Path, preprocess: Preprocess | None) -> str:
    """Return the name of the one input, which ``preprocess`` makes."""
    if preprocess is None:
        raise CompileError(
            f"{source}: --calibrate needs --preprocess: how a picture becomes the input"
        )
    names = [name for name in graph.inputs if name not in graph.constants]
    arrays = [graph.values.get(name) or graph.dynamic[name].array for name in names]
    shapes = [() if array is None else array.shape for array in arrays]
    if shapes != [preprocess.shape]:
        listed = ", ".join(f"{n!r} is {list(s)}" for n, s in zip(names, shapes, strict=True))
        raise CompileError(
            f"{source}: preprocessing makes one input {list(preprocess.shape)}; {listed or 'it has none'}"
        )
    return names[0]


def _check_count(count: int, source: Path, warn: Warn) -> None:
    """Refuse to calibrate with no picture; warn of few."""
    if count == 0:
        raise CompileError(f"{source}: no pictures to calibrate with")
    if count < _FEW:
        pictures = "1 picture" if count == 1 else f"{count} pictures"
        warn(f"calibrated with {pictures}: with fewer than {_FEW} it may lose points; a hundred do")


def _check_finite(file: Path, source: Path) -> None:
    """Refuse weights that no scale can hold."""
    for name, wrong in infinite_arrays(graph_at(file).constants):
        raise CompileError(
            f"{source}: weights {name!r}: {wrong} values are not finite: no scale holds them"
        )


class RangeError(ValueError):
    """A value is NaN or infinite; the message is the name of the first one."""


class _Session:
    """Gives the least and the largest numbers of values, which are to be numbers."""

    def __init__(self, path: str) -> None:
        self._session = open_session(path, session_options(optimise=False))
        self.get_outputs = self._session.get_outputs
        nodes = graph_at(Path(path)).nodes
        self._order = {name: place for place, node in enumerate(nodes) for name in node.outputs}

    def run(self, names: None, inputs: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
        results: list[NDArray[Any]] = self._session.run(names, inputs)
        endless = []
        for port, value in zip(self.get_outputs(), results, strict=True):
            name, _, kind = port.name.rpartition("_")
            # The calibrater adds these, and ends what it calls them with their operators.
            is_extreme = traits_of(kind).elements == "selected"
            if is_extreme and not np.isfinite(value).all():
                endless.append(name)
        if endless:
            raise RangeError(min(endless, key=lambda name: self._order.get(name, -1)))
        return results


class _Calibrater(MinMaxCalibrater):  # type: ignore[misc]
    def create_inference_session(self) -> None:
        self.infer_session = _Session(str(self.augmented_model_path))


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    """One sample."""

    def __init__(self, inputs: Mapping[str, NDArray[Any]]) -> None:
        self._left = [dict(inputs)]

    def get_next(self) -> dict[str, NDArray[Any]] | None:
        return self._left.pop() if self._left else None


class Ranges:
    """The least and the largest number of each value of the model in ``file``, over what is added.

    ``operators``: whose operands count. ``folder``: for a file that gives these values.
    """

    def __init__(self, file: Path, operators: Sequence[str], folder: Path) -> None:
        self.operators = operators
        augmented = folder / "ranges.onnx"
        self._calibrater = _Calibrater(file, operators, augmented, use_external_data_format=True)
        self._calibrater.augment_graph()
        self._calibrater.create_inference_session()

    def add(self, inputs: Mapping[str, NDArray[np.float32]]) -> None:
        """Run the model once and count what comes up.

        Raises:
            RangeError: a value that counts is no number.
        """
        self._calibrater.collect_data(_Reader(inputs))

    def found(self) -> Any:
        """Return the ranges as ONNX Runtime's quantiser takes them."""
        return self._calibrater.compute_data()


def write_quantised(file: Path, ranges: Ranges, result: Path, floats: Sequence[str] = ()) -> None:
    """Write the model in ``file`` as ``result``: values of 8 bits between QuantizeLinear and its inverse.

    ``floats``: labels of nodes that stay as they are. Raises what ONNX Runtime's quantiser raises.
    """
    model = onnx.load(file)
    if graph_at(file).opsets[""] < _PER_CHANNEL_OPSET:
        model = onnx.version_converter.convert_version(model, _PER_CHANNEL_OPSET)
    model = onnx.shape_inference.infer_shapes(model)
    name_nodes(model)  # those that the converter adds have no name
    quantizer = QDQQuantizer(
        model,
        True,  # a scale for each output channel
        False,  # all 8 bits of weights: sums are exact (optimising/exact_sums.py)
        QuantType.QInt8,
        QuantType.QUInt8,
        ranges.found(),
        [],
        list(floats),
        list(ranges.operators),
        {},
    )
    quantizer.quantize_model()
    quantizer.model.save_model_to_file(str(result), True)
