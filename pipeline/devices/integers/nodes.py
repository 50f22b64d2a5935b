"""What one node of a quantised piece is: a layer, a sum, an average, by the names of its tensors."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.devices.integers.layers import (
    Concatenation,
    Maxima,
    Part,
    QuantisedAverage,
    QuantisedLayer,
    Scaling,
    Sum,
    Window,
)
from pipeline.devices.integers.pieces import Node
from pipeline.devices.integers.structures import MOST_JOINED

#: Of values and constants: element type and shape.
Arrays = Mapping[str, tuple[str, tuple[int, ...]]]

#: Axes of an image.
IMAGE = 4
#: Whether bytes are signed; what is no byte is not here.
SIGNED = {"uint8": False, "int8": True}
# The element type of numbers of bytes, as ONNX has it, and how many bytes there are.
_INT32, _BYTES = 6, 256
#: The library counts pixels, channels and padding with 32 bits, and so what is made of two of them. A file
#: may say anything.
MOST = 1 << 20


class OtherError(Exception):
    """A piece is something else."""


class MisfitError(Exception):
    """A piece is a quantised layer, and its tensors do not fit each other: nothing could compute it."""


def require(holds: bool) -> None:
    """Raise OtherError unless it ``holds``."""
    if not holds:
        raise OtherError


def fits(holds: bool, node: Node, what: str) -> None:
    """Raise MisfitError unless it ``holds``; ``what``: of ``node`` does not fit."""
    if not holds:
        raise MisfitError(f"{what} of its {node.operator} do not fit its other tensors")


@dataclass
class Image:
    """What has been read so far: ``name`` is bytes [height, width, channels]."""

    name: str
    height: int
    width: int
    channels: int


class NodeReader:
    """Reads nodes on ``arrays``; raises OtherError of what is not recognised."""

    def __init__(self, arrays: Arrays) -> None:
        self._arrays = arrays

    def array(self, name: str) -> tuple[str, tuple[int, ...]]:
        """Return element type and shape of ``name``."""
        require(name in self._arrays)
        return self._arrays[name]

    def signed(self, name: str) -> bool:
        """Return whether the bytes ``name`` are signed."""
        dtype, _ = self.array(name)
        require(dtype in SIGNED)
        return SIGNED[dtype]

    def image(self, name: str) -> Image:
        """Return ``name`` as an image with channels last."""
        _, shape = self.array(name)
        self.signed(name)
        if len(shape) == 2:  # the rows of a matrix are pixels
            return Image(name, 1, *shape)
        require(len(shape) == IMAGE and shape[0] == 1)
        return Image(name, *shape[1:])

    def joined(self, node: Node, others: Sequence[str]) -> tuple[Concatenation, Image]:
        """Return what of ``others`` a QLinearConcat along channels puts together, and what that is."""
        given, inputs = node.attributes, node.inputs
        require(node.domain == "com.microsoft" and given.get("axis") in (-1, IMAGE - 1))
        require(len(inputs) % 3 == 2 and len(inputs) < 3 * (MOST_JOINED + 1))
        parts, images = [], []
        for at in range(2, len(inputs), 3):
            image, scaling = self.image(inputs[at]), self.scaling(node, at + 1)
            require(inputs[at] in others and len(self.array(inputs[at])[1]) == IMAGE)
            require(scaling.signed == self.signed(inputs[at]))
            parts.append(Part(inputs[at], image.channels, scaling))
            images.append(image)
        require(len({(image.height, image.width) for image in images}) == 1)
        channels = sum(image.channels for image in images)
        image = Image(node.outputs[0], images[0].height, images[0].width, channels)
        return Concatenation(tuple(parts), self.scaling(node, 0)), image

    def layer(self, node: Node, image: Image) -> QuantisedLayer:
        """Return the convolution or product of ``image`` that ``node`` is."""
        if node.operator == "QLinearConv" and node.domain == "com.microsoft":
            return self._convolution(node, image)
        require(node.operator == "QGemm")
        return self._product(node, image)

    def _convolution(self, node: Node, image: Image) -> QuantisedLayer:
        given = node.attributes
        require(given.get("channels_last") == 1 and given.get("auto_pad", "NOTSET") == "NOTSET")
        signed = self.signed(node.inputs[3])
        _, weights = self.array(node.inputs[3])
        require(len(weights) == IMAGE)
        filters, depth, *kernel = weights
        require(filters > 0 and depth > 0)
        weight = self._scalings(node, filters)
        require(weight.signed == signed)
        group = given.get("group", 1)
        if not isinstance(group, int):
            raise OtherError
        fits(depth * group == image.channels, node, "the weights")
        depthwise = group == filters == image.channels and filters > 1
        require(depthwise or group == 1)
        strides, steps = (_numbers(given.get(name), 1, 2) for name in ("strides", "dilations"))
        pads = _numbers(given.get("pads"), 0, 4)
        rows, columns = (
            _window(kernel[axis], strides[axis], steps[axis], (pads[axis], pads[axis + 2]), size)
            for axis, size in enumerate((image.height, image.width))
        )
        return QuantisedLayer(
            node.inputs[3],
            self._bias(node, 8, filters),
            self.scaling(node, 1),
            weight,
            self.scaling(node, 6),
            image.channels,
            filters,
            rows,
            columns,
            depthwise=depthwise,
        )

    def _product(self, node: Node, image: Image) -> QuantisedLayer:
        given = node.attributes
        plain = not given.get("transA", 0) and node.number("alpha", 1.0) == 1.0
        require(plain and len(node.inputs) == 9)
        signed = self.signed(node.inputs[3])
        _, weights = self.array(node.inputs[3])
        require(len(weights) == 2)
        by_inputs = not given.get("transB", 0)
        filters, channels = weights[::-1] if by_inputs else weights
        require(min(weights) > 0)
        weight = self._scalings(node, filters)
        require(weight.signed == signed)
        fits(channels == image.channels, node, "the weights")
        require(bool(node.inputs[7] and node.inputs[8]))
        return QuantisedLayer(
            node.inputs[3],
            self._bias(node, 6, filters),
            self.scaling(node, 1),
            weight,
            self.scaling(node, 7),
            channels,
            filters,
            Window(given=image.height, made=image.height),
            Window(given=image.width, made=image.width),
            by_inputs=by_inputs,
        )

    def sum(self, node: Node, image: Image, others: Sequence[str]) -> Sum:
        """Return the sum of ``image`` and one of ``others`` that ``node`` is."""
        first, second = node.inputs[0], node.inputs[3]
        require(image.name in (first, second) and first != second)
        other = first if image.name == second else second
        _, shape = self.array(other)
        require(other in others and shape == (1, image.height, image.width, image.channels))
        self.signed(other)
        scalings = (self.scaling(node, at) for at in (1, 4, 6))
        return Sum(other, image.name == second, *scalings)

    def pool(self, node: Node, image: Image) -> Maxima:
        """Return the maxima of windows of ``image`` that ``node`` is: each window has a pixel of it."""
        given = node.attributes
        require(node.domain == "com.microsoft")
        require(given.get("auto_pad", "NOTSET") == "NOTSET")
        require(_numbers(given.get("dilations"), 1, 2) == (1, 1))
        kernel, strides = (_numbers(given.get(name), 1, 2) for name in ("kernel_shape", "strides"))
        pads = _numbers(given.get("pads"), 0, 4)
        rows, columns = (
            _window(kernel[axis], strides[axis], 1, (pads[axis], pads[axis + 2]), size)
            for axis, size in enumerate((image.height, image.width))
        )
        require(max(pads) < min(kernel))
        sums = zip((rows, columns), pads[:2], pads[2:], strict=True)
        rests = {(of.given + low + high - of.kernel) % of.stride for of, low, high in sums}
        # Of ceil_mode some have more windows.
        require(not given.get("ceil_mode", 0) or rests == {0})
        return Maxima(rows, columns)

    def table(self, image: Image, cast: Node, gather: Node) -> tuple[str, str]:
        """Return the table in which two nodes look up ``image``, and what they make."""
        require(cast.inputs[0] == image.name and cast.attributes.get("to") == _INT32)
        require(gather.operator == "Gather" and gather.attributes.get("axis", 0) == 0)
        table, numbers = gather.inputs[:2]
        require(numbers == cast.outputs[0] and table != image.name)
        self.signed(table)
        require(self.array(table)[1] == (_BYTES,))
        return table, gather.outputs[0]

    def average(self, node: Node) -> QuantisedAverage:
        """Return the average of each channel that ``node`` is."""
        signed = self.signed(node.inputs[0])
        _, shape = self.array(node.inputs[0])
        require(node.attributes.get("channels_last") == 1)
        require(len(shape) == IMAGE and shape[0] == 1)
        given, made = self.scaling(node, 1), self.scaling(node, 3)
        pixels = math.prod(shape[1:-1])
        require(0 < pixels <= MOST and 0 < shape[-1] <= MOST)
        require(given.signed == signed and self.signed(node.outputs[0]) == made.signed)
        _, result = self.array(node.outputs[0])
        fits(math.prod(result) == shape[-1], node, "the results")
        return QuantisedAverage(node.inputs[0], node.outputs[0], given, made, shape[-1], pixels)

    def scaling(self, node: Node, at: int) -> Scaling:
        """Return the scale and zero point of inputs ``at`` and the next, one of each."""
        found, counts = self._scaling(node, at)
        require(counts == {1})
        return found

    def _scalings(self, node: Node, filters: int) -> Scaling:
        """Return those of weights: one, or one for each filter."""
        found, counts = self._scaling(node, 4)
        fits(counts <= {1, filters}, node, "the weights' scales and zero points")
        return found

    def _scaling(self, node: Node, at: int) -> tuple[Scaling, set[int]]:
        """Return also how many numbers these are."""
        scale, zero = node.inputs[at], node.inputs[at + 1]
        (kind, scales), (_, zeros) = self.array(scale), self.array(zero)
        require(kind == "float32")
        return Scaling(scale, zero, self.signed(zero)), {math.prod(scales), math.prod(zeros)}

    def _bias(self, node: Node, at: int, filters: int) -> str | None:
        name = node.inputs[at] if at < len(node.inputs) else ""
        if not name:
            return None
        dtype, shape = self.array(name)
        require(dtype == "int32")
        if node.operator == "QGemm":  # ONNX Runtime takes any that broadcasts, and looks at it
            require(shape == (filters,))
        fits(math.prod(shape) == filters, node, "the biases")
        return name


def _numbers(given: object, default: int, count: int) -> tuple[int, ...]:
    """Return a list of so many numbers; without ``given`` all are ``default``."""
    if given is None:
        return (default,) * count
    if not isinstance(given, tuple) or len(given) != count:
        raise OtherError
    return given


def _window(kernel: int, stride: int, step: int, pads: tuple[int, int], given: int) -> Window:
    reach = (kernel - 1) * step + 1
    require(kernel > 0 and stride > 0 and step > 0 and min(pads) >= 0)
    require(max(stride, step, reach, given, *pads) <= MOST)
    made = (given + sum(pads) - reach) // stride + 1
    require(made > 0)
    return Window(kernel, stride, step, pads[0], given, made)
