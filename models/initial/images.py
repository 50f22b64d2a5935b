"""What a skeleton is run on: the photographs as its own recipe makes tensors of them."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from models.errors import ModelError
from models.graphs.metadata import read_metadata
from models.images.preprocess import Preprocess
from models.initial.draw import named_generator
from models.photographs import photographs

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
                named_generator(seed, f"{port.name}/{i}").standard_normal(shape).astype(dtype)
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
