"""Seeded weights for skeletons, calibrated so that activations say something through 300 layers.

Random weights alone do not: their activations grow, die, or become equal for all images. Here every
batch norm gets the statistics that its input really has on a few photographs, and every other layer of
weights is scaled to outputs of deviation 1 (data-dependent initialisation, as in Mishkin and Matas,
"All you need is a good init", 2015). Such a network has learnt nothing, but it computes with numbers
of ordinary size, and what it answers depends on the image.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from models.errors import ModelError
from models.graphs.metadata import read_metadata
from models.graphs.nodes import attributes
from models.graphs.onnx_writer import declared
from models.images.preprocess import Preprocess
from models.network.catalogue import traits_of
from models.network.names import Op, op_of
from models.photographs import photographs
from models.progress import Progress, silent
from models.runtime.sessions import open_piece

# What a weight is before anything is measured: its role in the node that reads it, and its numbers.

Array = NDArray[np.float32]

#: Inputs of BatchNormalization.
SCALE, BIAS, MEAN, VARIANCE = range(1, 5)

BIAS_DEVIATION = 0.1
# With biases around 0 a rectifier cuts off half of what a batch norm gives, and each layer moves similar
# inputs apart: after 150 layers the last bit of a sum has become 1e-3 of the answer. Around one
# deviation it stays near 1e-5, and every sixth number is still cut off.
NORM_BIAS_MEAN, NORM_BIAS_DEVIATION = 1.0, 0.2
PRELU_SLOPE = 0.25


def _named_generator(seed: int, name: str) -> np.random.Generator:
    """Return a generator for one array: what it gives depends on nothing but ``seed`` and ``name``."""
    digest = hashlib.blake2s(f"{seed}:{name}".encode(), digest_size=16).digest()
    return np.random.default_rng(int.from_bytes(digest, "little"))


def draw(
    name: str, shape: tuple[int, ...], node: onnx.NodeProto | None, position: int, seed: int
) -> Array:
    """Return the array ``name`` that ``node`` (None: no node) reads as its input ``position``.

    Statistics of a batch norm are those of a unit input until they are measured.
    """
    generator = _named_generator(seed, name)
    kind = op_of(node) if node is not None else Op.Unknown
    if kind == Op.BatchNormalization:
        return _norm_array(shape, position, generator)
    normal = generator.standard_normal(shape, dtype=np.float32)
    is_layer = traits_of(kind).layer
    if node is not None and is_layer and position < 2:
        normal *= np.float32(math.sqrt(2 / _fan_in(node, position, shape)))
    elif is_layer or kind == Op.Add:
        normal *= np.float32(BIAS_DEVIATION)
    else:
        normal *= np.float32(0.1)
        normal += np.float32(1)
        if kind == Op.PRelu:
            normal *= np.float32(PRELU_SLOPE)
    return normal


def _norm_array(shape: tuple[int, ...], position: int, generator: np.random.Generator) -> Array:
    if position == SCALE:
        return generator.uniform(0.5, 1.5, shape).astype(np.float32)
    if position == BIAS:
        return generator.normal(NORM_BIAS_MEAN, NORM_BIAS_DEVIATION, shape).astype(np.float32)
    return np.full(shape, 1.0 if position == VARIANCE else 0.0, np.float32)


def _fan_in(node: onnx.NodeProto, position: int, shape: tuple[int, ...]) -> int:
    """Return how many products are summed up for one element of the output."""
    given = attributes(node)
    if op_of(node) == Op.Conv:
        return math.prod(shape[1:])
    if op_of(node) == Op.ConvTranspose:
        # Between the strides an output element meets only its share of the kernel.
        covered = math.prod(shape[2:]) / math.prod(given.get("strides", [1]))
        inputs: int = shape[0] // given.get("group", 1)
        return max(1, int(inputs * covered))
    flag = given.get("transA" if position == 0 else "transB", 0)
    rows_are_summed = (position == 1) != bool(flag)
    return shape[0] if len(shape) == 1 else shape[-2 if rows_are_summed else -1]


# Draw every weight, then run the skeleton on photographs and set what depends on activations.
#
# Nodes run one by one, weights held here: ONNX Runtime sessions of one node each. Processors and ONNX
# Runtime's kernels for them differ in the last bits: what is measured is kept to four bits, so that
# nearly no measurement differs, and with it no weight; batch norms do not need to be more exact than
# that.

# What a skeleton is run on: the photographs as its own recipe makes tensors of them.

AnyArray = NDArray[Any]


def sample_inputs(skeleton: onnx.ModelProto, seed: int) -> list[dict[str, AnyArray]]:
    """Return a value of each graph input for each photograph; what is no image is seeded noise.

    Raises:
        ModelError: an input has no static shape, or an entry of the metadata cannot be read.
    """
    weights = {tensor.name for tensor in skeleton.graph.initializer}
    ports = [port for port in skeleton.graph.input if port.name not in weights]
    samples: list[dict[str, AnyArray]] = [{} for _ in photographs()]
    for port in ports:
        shape, dtype = _array_type(skeleton, port)
        if dtype == np.float32 and len(shape) == 4 and 0 < min(shape[1], shape[3]) <= 4:
            arrays = _images(shape, _recipe(skeleton, shape))
        else:
            arrays = [
                _named_generator(seed, f"{port.name}/{i}").standard_normal(shape).astype(dtype)
                for i in range(len(samples))
            ]
        for sample, array in zip(samples, arrays, strict=True):
            sample[port.name] = array
    return samples


def _array_type(
    skeleton: onnx.ModelProto, port: onnx.ValueInfoProto
) -> tuple[tuple[int, ...], np.dtype[Any]]:
    kind = port.type.tensor_type
    shape = tuple(dim.dim_value for dim in kind.shape.dim)
    if not kind.HasField("shape") or min(shape, default=1) < 1:
        raise ModelError(f"{skeleton.graph.name}: input {port.name!r} has no static shape")
    return shape, np.dtype(helper.tensor_dtype_to_np_dtype(kind.elem_type))


def _recipe(skeleton: onnx.ModelProto, shape: tuple[int, ...]) -> Preprocess:
    """Return the recipe in the metadata where it fits ``shape``, else one that scales to 0..1."""
    by_rows = shape[1] <= 4
    height, width = shape[2:] if by_rows else shape[1:3]
    plain = Preprocess(
        size=(width, height), resize="crop", scale=1 / 255, layout="NCHW" if by_rows else "NHWC"
    )
    recipe = read_metadata(skeleton, Path(skeleton.graph.name)).preprocess
    return recipe if recipe and recipe.shape[1:] == shape[1:] else plain


def _images(shape: tuple[int, ...], recipe: Preprocess) -> list[AnyArray]:
    """Return an array of ``shape`` for each photograph; a batch goes on with the next ones."""
    axis = 1 if recipe.layout == "NCHW" else 3
    colours = [i % 3 for i in range(shape[axis])]
    single = [recipe.apply(image).take(colours, axis) for image in photographs()]
    return [
        np.concatenate([single[(first + i) % len(single)] for i in range(shape[0])])
        for first in range(len(single))
    ]


# Batch norms look at deviations no smaller than this part of the layer's own: a channel that is dead
# on the photographs must not be blown up to the size of the others.
_DEVIATION_FLOOR = 0.05
_SMALLEST_DEVIATION = 1e-3
Float64 = NDArray[np.float64]
_BITS = 4


def initialise(
    skeleton: onnx.ModelProto,
    seed: int = 0,
    biases: Mapping[str, Array] | None = None,
    progress: Progress = silent,
) -> dict[str, Array]:
    """Return a float32 array for each weight that ``skeleton`` declares (``onnx_writer.declared``).

    Every array is drawn from a generator of its own, seeded with ``seed`` and its name. Then the
    graph is run node by node on the photographs: batch norms get the mean and variance of their
    input; other layers a scale that makes their output deviate by 1 and, unless they put out a mere
    vector, a bias that centres each channel. ``biases`` gives arrays by name, which stay as they are, save
    where a bias centres: there it is what the mean of each channel becomes.

    Raises:
        ModelError: an input has no static shape, or ONNX Runtime cannot run a node.
    """
    given = {name: np.asarray(array, np.float32) for name, array in (biases or {}).items()}
    shapes = declared(skeleton)
    assert all(shapes.get(name) == array.shape for name, array in given.items()), "not declared"
    progress("draw weights")
    run = _Calibration(skeleton, seed, given)
    run.run(progress)
    return run.weights


def initialise_small(
    skeleton: onnx.ModelProto,
    small: onnx.ModelProto | None,
    seed: int = 0,
    biases: Mapping[str, Array] | None = None,
    progress: Progress = silent,
) -> dict[str, Array]:
    """As ``initialise``, but run on ``small`` where that declares the same weights.

    ``small`` is the same network at a lower resolution: quicker, and its weights are then the same at
    every resolution.
    """
    same = small is not None and declared(small) == declared(skeleton)
    return initialise(small if small is not None and same else skeleton, seed, biases, progress)


class _Calibration:
    """One run through a skeleton; ``weights`` are final once the node that reads them has run."""

    def __init__(self, skeleton: onnx.ModelProto, seed: int, given: Mapping[str, Array]) -> None:
        self._nodes = list(skeleton.graph.node)
        self._readers: dict[str, list[onnx.NodeProto]] = {}
        for node in self._nodes:
            for name in dict.fromkeys(node.input):
                self._readers.setdefault(name, []).append(node)
        shapes = declared(skeleton)
        self._open = set(shapes) - set(given)  # what may still be changed
        self._movable = set(shapes)
        self.weights: dict[str, Array] = {
            name: given[name].copy() if name in given else self._drawn(name, shape, seed)
            for name, shape in shapes.items()
        }
        constants = [tensor for tensor in skeleton.graph.initializer if tensor.name not in shapes]
        self._constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in constants}
        self._evaluator = NodeRunner(skeleton)
        self._values: dict[str, list[AnyArray]] = {}
        for sample in sample_inputs(skeleton, seed):
            for name, array in sample.items():
                self._values.setdefault(name, []).append(array)
        self._samples = len(next(iter(self._values.values()), []))

    def _drawn(self, name: str, shape: tuple[int, ...], seed: int) -> Array:
        reader = next(iter(self._readers.get(name, [])), None)
        position = list(reader.input).index(name) if reader is not None else 0
        return draw(name, shape, reader, position, seed)

    def run(self, progress: Progress) -> None:
        """Run the graph up to the last node that reads a weight."""
        needs = [any(name in self.weights for name in node.input) for node in self._nodes]
        last = max((i for i, needed in enumerate(needs) if needed), default=-1)
        unread = {name: len(nodes) for name, nodes in self._readers.items()}
        for position, node in enumerate(self._nodes[: last + 1]):
            progress("calibrate", f"node {position + 1} of {last + 1}")
            self._step(node)
            for name in dict.fromkeys(node.input):
                unread[name] -= 1
                if not unread[name]:
                    self._values.pop(name, None)

    def _step(self, node: onnx.NodeProto) -> None:
        if op_of(node) == Op.BatchNormalization:
            self._measure_norm(node)
        outputs = self._outputs(node)
        if self._is_scaled(node):
            self._scale(node, [arrays[0] for arrays in outputs])
            outputs = self._outputs(node)
        self._open -= set(node.input)
        self._movable -= set(node.input)
        names = [name for name in node.output if name]
        for position, name in enumerate(names):
            if name in self._readers:
                self._values[name] = [arrays[position] for arrays in outputs]

    def _outputs(self, node: onnx.NodeProto) -> list[list[AnyArray]]:
        """Return what ``node`` puts out for each photograph."""
        return [self._evaluator.run(node, self._inputs(node, i)) for i in range(self._samples)]

    def _inputs(self, node: onnx.NodeProto, sample: int) -> list[AnyArray | None]:
        return [self._value(name, sample) if name else None for name in node.input]

    def _value(self, name: str, sample: int) -> AnyArray:
        if name in self._values:
            return self._values[name][sample]
        return self.weights[name] if name in self.weights else self._constants[name]

    def _is_scaled(self, node: onnx.NodeProto) -> bool:
        """Return whether ``node`` multiplies by weights of ours, and no batch norm puts that right."""
        if not traits_of(op_of(node)).layer or not self._open & set(node.input[:2]):
            return False
        readers = self._readers.get(node.output[0], [])
        return not readers or any(
            op_of(reader) != Op.BatchNormalization or reader.input[VARIANCE] not in self._open
            for reader in readers
        )

    def _measure_norm(self, node: onnx.NodeProto) -> None:
        mean_name, variance_name = node.input[MEAN], node.input[VARIANCE]
        if not {mean_name, variance_name} & self._open:
            return
        mean, deviation = channel_statistics(self._values[node.input[0]], 1)
        typical = float(np.sqrt(np.mean(deviation**2)))
        deviation = coarse(
            np.maximum(deviation, max(_DEVIATION_FLOOR * typical, _SMALLEST_DEVIATION))
        )
        measured = {mean_name: coarse_mean(mean, deviation), variance_name: deviation**2}
        for name in set(measured) & self._open:
            self.weights[name][...] = measured[name]

    def _scale(self, node: onnx.NodeProto, outputs: Sequence[Array]) -> None:
        """Scale the weights of ``node`` by what it put out, and move its bias where it is ours."""
        weight = next(name for name in node.input[:2] if name in self._open)
        bias = node.input[2] if len(node.input) > 2 else ""
        is_image = traits_of(op_of(node)).access == "windowed"
        mean, deviation = channel_statistics(outputs, 1 if is_image else -1)
        if bias:
            mean -= self._value(bias, 0).reshape(-1)
        movable = (
            bias in self._movable
            and self.weights[bias].shape == mean.shape
            and outputs[0].size > mean.size  # of a vector, a few images say little
        )
        within, between = float(np.mean(deviation**2)), float(np.var(mean))
        counted = _DEVIATION_FLOOR**2 if movable else 1.0  # a bias takes away what lies between
        total = max(math.sqrt(within + counted * between), _SMALLEST_DEVIATION)
        factor = 1 / coarse(np.array(total))
        self.weights[weight] *= np.float32(factor)
        if movable:
            self.weights[bias] -= coarse_mean(mean * factor, np.ones(1)).astype(np.float32)


def channel_statistics(arrays: Sequence[NDArray[Any]], axis: int) -> tuple[Float64, Float64]:
    """Return mean and standard deviation of each channel along ``axis``, over all of ``arrays``.

    The arrays have the same shape.
    """
    axis %= arrays[0].ndim
    others = tuple(i for i in range(arrays[0].ndim) if i != axis)
    mean = np.mean([array.mean(others, np.float64) for array in arrays], 0)
    shape = [1] * arrays[0].ndim
    shape[axis] = -1
    # Float32 keeps the copies small; what it rounds off is far below what is kept of the result.
    centre = mean.astype(np.float32).reshape(shape)
    squares = [np.square(array - centre).mean(others, np.float64) for array in arrays]
    return mean, np.sqrt(np.mean(squares, 0))


def coarse(values: Float64) -> Float64:
    """Return ``values`` rounded to four significant bits each."""
    mantissa, exponent = np.frexp(values)
    rounded: Float64 = np.ldexp(np.round(np.ldexp(mantissa, _BITS)), exponent - _BITS)
    return rounded


def coarse_mean(mean: Float64, deviation: Float64) -> Float64:
    """Return ``mean`` rounded to about a sixteenth of ``deviation`` (positive)."""
    _, exponent = np.frexp(deviation)
    rounded: Float64 = np.ldexp(np.round(np.ldexp(mean, _BITS - exponent)), exponent - _BITS)
    return rounded


class NodeRunner:
    """Runs nodes of one model; nodes that do the same share a session."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._name = model.graph.name
        self._opsets = list(model.opset_import)
        self._ir_version = model.ir_version
        self._sessions: dict[bytes, ort.InferenceSession] = {}

    def run(self, node: onnx.NodeProto, inputs: Sequence[AnyArray | None]) -> list[AnyArray]:
        """Return the outputs of ``node``, unnamed ones left out; an input is None where it has none.

        Raises:
            ModelError: ONNX Runtime cannot run the node on these inputs.
        """
        feeds = {f"x{i}": value for i, value in enumerate(inputs) if value is not None}
        key = self._serialised(node, feeds)
        try:
            if key not in self._sessions:
                self._sessions[key] = open_piece(key)
            return list(self._sessions[key].run(None, feeds))
        except Exception as exc:  # ONNX Runtime's errors share no base class of their own
            raise ModelError(f"{self._name}: node {node.name!r}: {exc}") from exc

    def _serialised(self, node: onnx.NodeProto, feeds: dict[str, AnyArray]) -> bytes:
        """Return ``node`` as a model: without names, and without shapes, which come with the inputs."""
        alone = onnx.NodeProto()
        alone.CopyFrom(node)
        alone.name = ""
        alone.input[:] = [f"x{i}" if name else "" for i, name in enumerate(node.input)]
        alone.output[:] = [f"y{i}" if name else "" for i, name in enumerate(node.output)]
        ports = [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(np.dtype(value.dtype)), _declared_shape(value)
            )
            for name, value in feeds.items()
        ]
        outputs = [onnx.ValueInfoProto(name=name) for name in alone.output if name]
        graph = helper.make_graph([alone], "", ports, outputs)
        model = helper.make_model(
            graph, opset_imports=self._opsets, ir_version=self._ir_version, producer_name=""
        )
        return bytes(model.SerializeToString(deterministic=True))


def _declared_shape(value: AnyArray) -> list[int | None]:
    """Return an unknown shape, but for sizes and axes: Resize takes none of unknown length."""
    return list(value.shape) if value.dtype == np.int64 else [None] * value.ndim
