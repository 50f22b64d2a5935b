"""Make a trained network small: ``python -m benchmarks.training.folding TRAINED.onnx SHIPPED.onnx``.

Batch norms are folded into convolutions: what layers share they still share afterwards, which is what ONNX
Runtime's own folding undoes. Whole numbers that become floats anyway get as few bytes as hold them.
"""

import sys
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

Arrays = dict[str, NDArray[np.float32]]
_CONSTANTS = slice(1, 5)  # of a batch norm's inputs: scale, bias, mean, variance
_DEFAULTS = {"group": 1, "strides": 1, "dilations": 1, "pads": 0}
_WHOLE = (np.uint8, np.int16, np.int32)


def fold(model: onnx.ModelProto) -> None:
    """Fold each batch norm of ``model`` that alone reads a convolution."""
    graph = model.graph
    arrays = {item.name: numpy_helper.to_array(item) for item in graph.initializer}
    readers = Counter(name for node in graph.node for name in node.input)
    readers.update(port.name for port in graph.output)
    makers = {node.output[0]: node for node in graph.node if node.op_type == "Conv"}
    folded: Arrays = {}
    gone: dict[str, str] = {}
    for norm in graph.node:
        conv = makers.get(norm.input[0]) if norm.op_type == "BatchNormalization" else None
        if conv is None or readers[conv.output[0]] > 1:
            continue
        names = _names(conv.input[1], norm)
        for name, array in zip(names, _values(conv, norm, arrays), strict=True):
            folded[name] = array
        del conv.input[1:]
        conv.input.extend(names)
        gone[norm.output[0]] = conv.output[0]
    kept = [node for node in graph.node if node.output[0] not in gone]
    for node in kept:
        node.input[:] = [gone.get(name, name) for name in node.input]
    del graph.node[:]
    graph.node.extend(kept)
    arrays = {**arrays, **folded}
    read = dict.fromkeys(name for node in kept for name in node.input if name in arrays)
    del graph.initializer[:]
    graph.initializer.extend(numpy_helper.from_array(arrays[name], name) for name in read)


def _names(weight: str, norm: onnx.NodeProto) -> tuple[str, str]:
    """Return names that are the same for the same weights and the same batch norm."""
    stem, own = weight.removesuffix(".weight"), norm.input[1].removesuffix(".norm.weight")
    named = stem if stem == own else f"{stem}.{own}"
    return f"{named}.weight", f"{named}.bias"


def _values(
    conv: onnx.NodeProto, norm: onnx.NodeProto, arrays: Arrays
) -> tuple[NDArray[np.float32], ...]:
    epsilon = next((item.f for item in norm.attribute if item.name == "epsilon"), 1e-5)
    scale, bias, mean, variance = (
        arrays[name].astype(np.float64) for name in norm.input[_CONSTANTS]
    )
    before = arrays[conv.input[2]] if len(conv.input) > 2 else 0.0
    factor = scale / np.sqrt(variance + epsilon)
    weight = arrays[conv.input[1]] * factor[:, None, None, None]
    return weight.astype(np.float32), ((before - mean) * factor + bias).astype(np.float32)


def shorten(model: onnx.ModelProto) -> None:
    """Give whole numbers that are only cast to floats as few bytes as hold them."""
    nodes = model.graph.node
    cast = {node.input[0] for node in nodes if node.op_type == "Cast"}
    cast -= {name for node in nodes if node.op_type != "Cast" for name in node.input}
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if tensor.name in cast and array.dtype == np.int64:
            held = next(kind for kind in (*_WHOLE, np.int64) if (array == array.astype(kind)).all())
            tensor.CopyFrom(numpy_helper.from_array(array.astype(held), tensor.name))


def trim(model: onnx.ModelProto) -> None:
    """Take away what a convolution has by default, and names of nodes that say what their outputs say."""
    for node in model.graph.node:
        node.name = ""
        if node.op_type == "Conv":
            kept = [item for item in node.attribute if not _is_default(item)]
            del node.attribute[:]
            node.attribute.extend(kept)


def _is_default(item: onnx.AttributeProto) -> bool:
    if item.name == "kernel_shape":  # the weight says it
        return True
    return item.name in _DEFAULTS and set(item.ints or [item.i]) == {_DEFAULTS[item.name]}


def main() -> None:
    """Make the second file of the first."""
    source, target = map(Path, sys.argv[1:])
    model = onnx.load(source)
    fold(model)
    shorten(model)
    trim(model)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, target)


if __name__ == "__main__":
    main()
