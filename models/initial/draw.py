"""What a weight is before anything is measured: its role in the node that reads it, and its numbers."""

import hashlib
import math
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

Array = NDArray[np.float32]

#: Inputs of BatchNormalization.
SCALE, BIAS, MEAN, VARIANCE = range(1, 5)
#: Nodes that multiply by a matrix of weights.
MATRIX_NODES = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})

BIAS_DEVIATION = 0.1
# With biases around 0 a rectifier cuts off half of what a batch norm gives, and each layer moves similar
# inputs apart: after 150 layers the last bit of a sum has become 1e-3 of the answer. Around one
# deviation it stays near 1e-5, and every sixth number is still cut off.
NORM_BIAS_MEAN, NORM_BIAS_DEVIATION = 1.0, 0.2
PRELU_SLOPE = 0.25


def named_generator(seed: int, name: str) -> np.random.Generator:
    """Return a generator for one array: what it gives depends on nothing but ``seed`` and ``name``."""
    digest = hashlib.blake2s(f"{seed}:{name}".encode(), digest_size=16).digest()
    return np.random.default_rng(int.from_bytes(digest, "little"))


def draw(
    name: str, shape: tuple[int, ...], node: onnx.NodeProto | None, position: int, seed: int
) -> Array:
    """Return the array ``name`` that ``node`` (None: no node) reads as its input ``position``.

    Statistics of a batch norm are those of a unit input until they are measured.
    """
    generator = named_generator(seed, name)
    kind = node.op_type if node is not None else ""
    if node is not None and kind == "BatchNormalization":
        return _norm_array(shape, position, generator)
    normal = generator.standard_normal(shape, dtype=np.float32)
    if node is not None and kind in MATRIX_NODES and position < 2:
        normal *= np.float32(math.sqrt(2 / _fan_in(node, position, shape)))
    elif kind in MATRIX_NODES or kind == "Add":
        normal *= np.float32(BIAS_DEVIATION)
    else:
        normal *= np.float32(0.1)
        normal += np.float32(1)
        if kind == "PRelu":
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
    attributes: dict[str, Any] = {
        item.name: helper.get_attribute_value(item) for item in node.attribute
    }
    if node.op_type == "Conv":
        return math.prod(shape[1:])
    if node.op_type == "ConvTranspose":
        # Between the strides an output element meets only its share of the kernel.
        covered = math.prod(shape[2:]) / math.prod(attributes.get("strides", [1]))
        inputs: int = shape[0] // attributes.get("group", 1)
        return max(1, int(inputs * covered))
    flag = attributes.get("transA" if position == 0 else "transB", 0)
    rows_are_summed = (position == 1) != bool(flag)
    return shape[0] if len(shape) == 1 else shape[-2 if rows_are_summed else -1]
