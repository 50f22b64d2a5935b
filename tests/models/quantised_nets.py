"""Quantised networks, drawn by a seed: what onnxruntime.quantization and our own quantiser write.

A network is convolutions with the activations, gates, sums and pools of detectors, classifiers and small
attentions. Which of its operators are quantised, how values are written between them and which integers
hold them is drawn, too.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_static,
)
from PIL import Image

from models.images.preprocess import Preprocess

#: What is quantised: a usual choice each; None: all that ONNX Runtime's quantiser takes.
OPERATORS: tuple[tuple[str, ...] | None, ...] = (
    ("Conv",),
    ("Conv", "Add"),
    ("Conv", "Mul"),
    ("Conv", "MatMul", "Gemm"),
    ("Conv", "Sigmoid", "AveragePool", "GlobalAveragePool", "Concat"),
    None,
)
_LARGEST_INPUT = 3.0


@dataclass(frozen=True)
class Drawn:
    """A network of floats and how it is quantised.

    ``operators``: those that are, None: all. ``by_compiler``: by our compiler, on ``pictures``.
    ``vectors``: scales of whole values have one axis.
    """

    model: onnx.ModelProto
    shape: tuple[int, int, int, int]
    by_compiler: bool
    form: QuantFormat
    operators: tuple[str, ...] | None
    per_channel: bool
    activations: QuantType
    weights: QuantType
    options: Mapping[str, bool]
    vectors: bool
    layers: Sequence[str]

    def __str__(self) -> str:
        if self.by_compiler:
            return f"own int8, {list(self.shape)}: {' '.join(self.layers)}"
        kind = f"{self.form.name} {self.activations.name} {self.weights.name}"
        named = "all" if self.operators is None else "+".join(self.operators)
        channels = "channels" if self.per_channel else "tensors"
        channels += " vectors" if self.vectors else ""
        return f"{kind} {named} {channels} {dict(self.options)}: {' '.join(self.layers)}"

    @property
    def has_ties(self) -> bool:
        """Whether means or probabilities are integers: half a step between two is one or the other."""
        kinds = {node.op_type for node in self.model.graph.node}
        rounded = {"AveragePool", "GlobalAveragePool", "Softmax"}
        every = self.by_compiler or self.operators is None
        return bool(kinds & (rounded if every else rounded.intersection(self.operators or ())))

    def inputs(self, seed: int) -> dict[str, NDArray[np.float32]]:
        """Return what a request has: the same for equal seeds."""
        drawn = np.random.default_rng(seed).standard_normal(self.shape)
        return {"x": drawn.astype(np.float32).clip(-_LARGEST_INPUT, _LARGEST_INPUT)}

    def pictures(self) -> Iterator[Image.Image]:
        """Yield pictures that ``preprocess`` makes inputs of."""
        generator = np.random.default_rng(5)
        for _ in range(3):
            pixels = generator.integers(0, 256, (*self.shape[2:], 3))
            yield Image.fromarray(pixels.astype(np.uint8))

    @property
    def preprocess(self) -> Preprocess:
        return Preprocess(size=(self.shape[3], self.shape[2]), mean=(128.0,), std=(64.0,))

    def write(self, folder: Path) -> Path:
        """Write what is compiled, one that our compiler quantises as floats; return the file."""
        source = folder / "floats.onnx"
        onnx.save(self.model, source)
        if self.by_compiler:
            return source
        quantize_static(
            source,
            folder / "m.onnx",
            _Samples([self.inputs(seed) for seed in range(100, 103)]),
            self.form,
            op_types_to_quantize=None if self.operators is None else [*self.operators],
            per_channel=self.per_channel,
            activation_type=self.activations,
            weight_type=self.weights,
            extra_options=dict(self.options),
        )
        if self.vectors:
            _as_vectors(folder / "m.onnx")
        return folder / "m.onnx"


def _as_vectors(file: Path) -> None:
    """Write scales and zero points of whole values in ``file`` as vectors of one element."""
    model = onnx.load(file)
    names = {
        name
        for node in model.graph.node
        for name in node.input[1:]
        if node.op_type in ("QuantizeLinear", "DequantizeLinear")
    }
    for tensor in model.graph.initializer:
        if tensor.name in names and not tensor.dims:
            tensor.dims.append(1)
    onnx.save(model, file)


def drawn(seed: int) -> Drawn:
    """Return network number ``seed``."""
    generator = np.random.default_rng(seed)
    by_compiler = bool(generator.random() < 0.15)
    network = _Network(generator, by_compiler)
    form = QuantFormat.QDQ if generator.random() < 0.7 else QuantFormat.QOperator
    types = [(QuantType.QUInt8, QuantType.QInt8)] * 3 + [(QuantType.QInt8, QuantType.QInt8)] * 2
    types.append((QuantType.QUInt8, QuantType.QUInt8))
    activations, weights = types[generator.integers(len(types))]
    names = ["ActivationSymmetric", "WeightSymmetric", "ForceQuantizeNoInputCheck"]
    if form == QuantFormat.QDQ:
        names += ["AddQDQPairToWeight", "QDQKeepRemovableActivations", "DedicatedQDQPair"]
    options = {name: True for name in names if generator.random() < 0.15}
    return Drawn(
        network.model(),
        network.shape,
        by_compiler,
        form,
        OPERATORS[generator.integers(len(OPERATORS))],
        bool(generator.random() < 0.5),
        activations,
        weights,
        options,
        bool(generator.random() < 0.25) and form == QuantFormat.QDQ,
        network.layers,
    )


class _Samples(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, samples: Sequence[dict[str, NDArray[np.float32]]]) -> None:
        self._samples = iter(samples)

    def get_next(self) -> dict[str, NDArray[np.float32]] | None:
        return next(self._samples, None)


@dataclass
class _Value:
    """``name`` of a value [1, channels, height, width]."""

    name: str
    channels: int
    height: int
    width: int

    @property
    def map(self) -> tuple[int, int]:
        return self.height, self.width


@dataclass
class _Network:
    """Draws layer after layer; ``by_compiler``: of a picture, with three channels."""

    generator: np.random.Generator
    by_compiler: bool
    layers: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []
        # From 256 KiB on, 48 x 48 pixels of 32 channels, operators write over what they read.
        sides = self._pick(((12, 16, 17), (24, 33), (48, 56, 64)))
        height, width = (int(self._pick(sides)) for _ in range(2))
        channels = 3 if self.by_compiler else int(self._pick((3, 3, 1, 8, 16)))
        self.shape = (1, channels, height, width)
        self._outputs: list[tuple[str, list[int]]] = []
        self._draw(_Value("x", channels, height, width))

    def model(self) -> onnx.ModelProto:
        """Return it in floats."""
        ports = [helper.make_tensor_value_info("x", TensorProto.FLOAT, list(self.shape))]
        results = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in self._outputs
        ]
        graph = helper.make_graph(self._nodes, "drawn", ports, results, self._constants)
        opset = 20 if any(node.op_type == "Gelu" for node in self._nodes) else 14
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9
        )

    def _draw(self, value: _Value) -> None:
        value = self._activated(self._conv(value, int(self._pick((16, 24, 32))), 3))
        values = [value]
        layers: list[Callable[[_Value], _Value]] = [
            *[self._layer] * 4,
            *[self._residual] * 3,
            *(self._branches, self._gate, self._gate, self._pool, self._attention, self._resized),
        ]
        for _ in range(int(self.generator.integers(2, 6))):
            value = self._pick(layers)(value)
            equal = [
                old for old in values if (old.channels, old.map) == (value.channels, value.map)
            ]
            if equal and self.generator.random() < 0.3:
                value = self._combined("Add", value, self._pick(equal))
            values.append(value)
        if self.generator.random() < 0.3:
            self._outputs.append(
                (value.name, [1, value.channels, *value.map])
            )  # and read by what comes
        self._head(value)

    def _pick(self, choices: Sequence[Any]) -> Any:
        return choices[int(self.generator.integers(len(choices)))]

    def _node(self, kind: str, inputs: Sequence[str], outputs: int = 1, **fields: Any) -> list[str]:
        count = len(self._nodes)
        names = [f"{kind}{count}_{index}" for index in range(outputs)]
        self._nodes.append(helper.make_node(kind, [*inputs], names, f"{kind}{count}", **fields))
        return names

    def _constant(self, array: Any, dtype: Any = np.float32) -> str:
        name = f"k{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.asarray(array, dtype), name))
        return name

    def _random(self, shape: tuple[int, ...], scale: float) -> str:
        return self._constant(self.generator.standard_normal(shape) * scale)

    def _conv(self, value: _Value, channels: int, side: int, groups: int = 1) -> _Value:
        shape = (channels, value.channels // groups, side, side)
        stride = 2 if min(value.map) > 12 and self.generator.random() < 0.2 else 1
        operands = [self._random(shape, 1.4 / math.sqrt(math.prod(shape[1:])))]
        if self.generator.random() < 0.8:
            operands.append(self._random((channels,), 0.1))
        fields: dict[str, Any] = {"pads": [side // 2] * 4, "strides": [stride] * 2, "group": groups}
        (name,) = self._node("Conv", [value.name, *operands], kernel_shape=[side] * 2, **fields)
        self.layers.append(f"conv{side}" + ("/2" if stride > 1 else ""))
        return _Value(name, channels, *((pixels - 1) // stride + 1 for pixels in value.map))

    def _with(self, value: _Value, name: str) -> _Value:
        return _Value(name, value.channels, *value.map)

    def _combined(self, kind: str, value: _Value, other: _Value) -> _Value:
        self.layers.append(kind.lower())
        inputs = [value.name, other.name]
        return self._with(value, self._node(kind, inputs)[0])

    def _activated(self, value: _Value) -> _Value:
        kind = self._pick(
            (*("silu", "silu", "gelu", "hardswish", "hardswish node", "none"), *_PLAIN)
        )
        self.layers.append(kind)
        x = value.name
        if kind in _PLAIN:
            x = self._node(_PLAIN[kind], [x])[0]
        elif kind == "silu":
            x = self._node("Mul", [x, self._node("Sigmoid", [x])[0]])[0]
        elif kind == "hardswish node":
            x = self._node("HardSwish", [x])[0]
        elif kind == "hardswish":
            zero, three, six = (self._constant(constant) for constant in (0, 3, 6))
            added = self._node("Add", [x, three])[0]
            clipped = self._node("Clip", [added, zero, six])[0]
            x = self._node("Div", [self._node("Mul", [x, clipped])[0], six])[0]
        elif kind == "gelu":
            half, one, root = (self._constant(constant) for constant in (0.5, 1, math.sqrt(2)))
            erf = self._node("Erf", [self._node("Div", [x, root])[0]])[0]
            product = self._node("Mul", [x, self._node("Add", [erf, one])[0]])[0]
            x = self._node("Mul", [product, half])[0]
        return self._with(value, x)

    def _layer(self, value: _Value) -> _Value:
        if self.generator.random() < 0.25:
            return self._activated(self._conv(value, value.channels, 3, value.channels))
        channels, side = int(self._pick((16, 24, 32, 48))), int(self._pick((1, 3, 3)))
        return self._activated(self._conv(value, channels, side))

    def _residual(self, value: _Value) -> _Value:
        inner = self._activated(self._conv(value, value.channels, 1))
        shape = (value.channels, value.channels, 3, 3)
        weights = self._random(shape, 1.4 / math.sqrt(math.prod(shape[1:])))
        (name,) = self._node("Conv", [inner.name, weights], pads=[1] * 4)
        outer = self._with(inner, name)
        if inner.map != value.map:
            return self._activated(outer)
        total = self._combined("Add", self._activated(outer), value)
        return self._activated(total) if self.generator.random() < 0.5 else total

    def _branches(self, value: _Value) -> _Value:
        half = value.channels // 2
        if self.generator.random() < 0.5:
            sizes = self._constant([half, value.channels - half], np.int64)
            names = self._node("Split", [value.name, sizes], 2, axis=1)
        else:
            names = [value.name, value.name]
            half = value.channels
        first = _Value(names[0], half, *value.map)
        shape = (16, half, 1, 1)
        weights = self._random(shape, 1.4 / math.sqrt(half))
        branch = self._activated(_Value(self._node("Conv", [names[0], weights])[0], 16, *value.map))
        other = value.channels - half if half != value.channels else value.channels
        self.layers.append("concat")
        concatenated = self._node("Concat", [branch.name, names[1]], axis=1)[0]
        return _Value(concatenated, 16 + other, first.height, first.width)

    def _gate(self, value: _Value) -> _Value:
        """Squeeze and excite, or a gate of each pixel."""
        self.layers.append("gate")
        x, channels = value.name, value.channels
        if self.generator.random() < 0.6:
            x = self._node("GlobalAveragePool", [x])[0]
            weights = self._random((8, channels, 1, 1), 1 / math.sqrt(channels))
            x = self._node("Relu", [self._node("Conv", [x, weights])[0]])[0]
            x = self._node("Conv", [x, self._random((channels, 8, 1, 1), 0.7)])[0]
        else:
            weights = self._random((channels, channels, 1, 1), 1 / math.sqrt(channels))
            x = self._node("Conv", [x, weights])[0]
        x = self._node(self._pick(("Sigmoid", "HardSigmoid", "Tanh")), [x])[0]
        return self._with(value, self._node("Mul", [value.name, x])[0])

    def _pool(self, value: _Value) -> _Value:
        kind = self._pick(("MaxPool", "AveragePool"))
        if min(value.map) < 6:
            return value
        self.layers.append(kind)
        name = self._node(kind, [value.name], kernel_shape=[2, 2], strides=[2, 2])[0]
        return _Value(name, value.channels, value.height // 2, value.width // 2)

    def _resized(self, value: _Value) -> _Value:
        if max(value.map) > 17:
            return self._pool(value)
        self.layers.append("resize")
        scales = self._constant([1, 1, 2, 2])
        fields: dict[str, Any] = {
            "mode": "nearest",
            "coordinate_transformation_mode": "asymmetric",
        }
        name = self._node("Resize", [value.name, "", scales], nearest_mode="floor", **fields)[0]
        return _Value(name, value.channels, value.height * 2, value.width * 2)

    def _attention(self, value: _Value) -> _Value:
        """Attention among channels, of one head."""
        self.layers.append("attention")
        channels, pixels = value.channels, value.height * value.width
        shape = self._constant([1, channels, pixels], np.int64)
        x = self._node("Reshape", [value.name, shape])[0]
        turned = self._node("Transpose", [x], perm=[0, 2, 1])[0]
        scores = self._node("MatMul", [x, turned])[0]
        scores = self._node("Mul", [scores, self._constant(1 / math.sqrt(pixels))])[0]
        mixed = self._node("MatMul", [self._node("Softmax", [scores], axis=-1)[0], x])[0]
        back = self._constant([1, channels, *value.map], np.int64)
        mixed = self._node("Reshape", [mixed, back])[0]
        return self._with(value, self._node("Add", [value.name, mixed])[0])

    def _head(self, value: _Value) -> None:
        kind = self._pick(("map", "map", "activated", "classes", "probabilities", "softmax"))
        self.layers.append(f"-> {kind}")
        name, shape = value.name, [1, value.channels, *value.map]
        if kind in ("map", "softmax"):
            value = self._conv(value, 10, 1)
            name, shape = value.name, [1, 10, *value.map]
            if kind == "softmax":
                name = self._node("Softmax", [name], axis=1)[0]
        elif kind in ("classes", "probabilities"):
            pooled = self._node("GlobalAveragePool", [name])[0]
            flat = self._node("Flatten", [pooled])[0]
            weights = self._random((value.channels, 12), 1 / math.sqrt(value.channels))
            name, shape = self._node("Gemm", [flat, weights, self._random((12,), 0.1)])[0], [1, 12]
            if kind == "probabilities":
                name = self._node("Softmax", [name], axis=1)[0]
        if all(name != other for other, _ in self._outputs):
            self._outputs.append((name, shape))


#: Activations that are one operator.
_PLAIN = {
    "relu": "Relu",
    "sigmoid": "Sigmoid",
    "leaky": "LeakyRelu",
    "tanh": "Tanh",
    "hardsigmoid": "HardSigmoid",
}
