"""Small CNNs at random, of what passes change: channels of many counts, gates, shuffles, crops, tokens."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import onnx

from tests.models.nets import parsed

Shape = tuple[int, ...]
_CHANNELS = (8, 16, 24, 58, 32, 3)


@dataclass
class Cnn:
    """A network that grows; its last value is ``value`` [1, ``channels``, ``side``, ``side``]."""

    rng: random.Random
    channels: int
    side: int
    value: str = "x"
    lines: list[str] = field(default_factory=list)
    weights: dict[str, Shape] = field(default_factory=dict)
    blocks: list[str] = field(default_factory=list)

    def line(self, expression: str) -> str:
        name = f"v{len(self.lines)}"
        self.lines.append(f"{name} = {expression}")
        return name

    def weight(self, *shape: int) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = shape
        return name

    def conv(self, x: str, channels: int, count: int, kernel: int = 1, group: int = 1) -> str:
        weight = self.weight(count, channels // group, kernel, kernel)
        pads = ", ".join([str(kernel // 2)] * 4)
        bias = f", {self.weight(count)}" if self.rng.random() < 0.5 else ""
        return self.line(f"Conv<pads=[{pads}], group={group}>({x}, {weight}{bias})")

    def activation(self, x: str) -> str:
        kind = self.rng.choice(("Relu", "SiLU", "Mish", "LeakyRelu<alpha=0.1>", "HardSwish", ""))
        if kind == "SiLU":
            return self.line(f"Mul({x}, {self.line(f'Sigmoid({x})')})")
        if kind == "Mish":
            soft = self.line(f"Softplus({x})")
            return self.line(f"Mul({x}, {self.line(f'Tanh({soft})')})")
        return self.line(f"{kind}({x})") if kind else x

    def layer(self) -> None:
        count = self.rng.choice(_CHANNELS)
        y = self.conv(self.value, self.channels, count, self.rng.choice((1, 3)))
        self.value, self.channels = self.activation(y), count

    def shortcut(self) -> None:
        y = self.activation(self.conv(self.value, self.channels, self.channels, 3))
        self.value = self.activation(self.line(f"Add({y}, {self.value})"))

    def bottleneck(self) -> None:
        inner = 4 * self.channels
        y = self.activation(self.conv(self.value, self.channels, inner))
        y = self.activation(self.conv(y, inner, inner, 3, inner))
        if self.rng.random() < 0.6:
            squeezed = max(self.channels // 2, 2)
            means = self.line(f"GlobalAveragePool({y})")
            gate = self.line(f"Relu({self.conv(means, inner, squeezed)})")
            y = self.line(f"Mul({y}, {self.line(f'Sigmoid({self.conv(gate, squeezed, inner)})')})")
        y = self.conv(y, inner, self.channels)
        self.value = self.line(f"Add({self.value}, {y})")

    def branches(self) -> None:
        one, other = self.rng.choice(_CHANNELS), self.rng.choice(_CHANNELS)
        count = [
            self.activation(self.conv(self.value, self.channels, count)) for count in (one, other)
        ]
        self.value, self.channels = self.line(f"Concat<axis=1>({', '.join(count)})"), one + other

    def shuffle(self) -> None:
        c, s = self.channels, self.side
        if c % 2:
            return
        groups = self.line(f"Reshape({self.value}, {self.shape(1, 2, c // 2, s, s)})")
        turned = self.line(f"Transpose<perm=[0, 2, 1, 3, 4]>({groups})")
        self.value = self.line(f"Reshape({turned}, {self.shape(1, c, s, s)})")

    def shape(self, *sides: int) -> str:
        return self.line(f"Constant<value_ints=[{', '.join(map(str, sides))}]>()")

    def crop(self) -> None:
        if self.side < 4:
            return
        side = self.side - 2
        starts, ends, axes = self.shape(1, 1), self.shape(1 + side, 1 + side), self.shape(2, 3)
        self.value = self.line(f"Slice({self.value}, {starts}, {ends}, {axes})")
        self.side = side

    def transposed(self) -> None:
        if self.side > 20:
            return
        count = self.rng.choice(_CHANNELS)
        weight = self.weight(self.channels, count, 2, 2)
        self.value = self.line(f"ConvTranspose<strides=[2, 2]>({self.value}, {weight})")
        self.channels, self.side = count, 2 * self.side

    def resized(self) -> None:
        if self.side > 20:
            return
        mode = self.rng.choice(("nearest", "linear"))
        sizes = self.shape(1, self.channels, 2 * self.side, 2 * self.side)
        attributes = f'mode="{mode}", coordinate_transformation_mode="asymmetric"'
        floor = ', nearest_mode="floor"' if mode == "nearest" else ""
        self.value = self.line(f"Resize<{attributes}{floor}>({self.value}, , , {sizes})")
        self.side *= 2

    def pool(self) -> None:
        if self.side < 4:
            return
        kind = self.rng.choice(("MaxPool", "AveragePool"))
        ceil = self.rng.randrange(2)
        attributes = f"kernel_shape=[2, 2], strides=[2, 2], ceil_mode={ceil}"
        self.value = self.line(f"{kind}<{attributes}>({self.value})")
        self.side = (self.side + ceil) // 2

    def softmax(self) -> None:
        self.value = self.line(f"Softmax<axis=1>({self.value})")

    def tokens(self) -> None:
        c, s = self.channels, self.side
        last = self.line(f"Transpose<perm=[0, 2, 3, 1]>({self.value})")
        rows = self.line(f"Reshape({last}, {self.shape(1, s * s, c)})")
        count = self.rng.choice((16, 32))
        y = self.line(f"MatMul({rows}, {self.weight(c, count)})")
        y = self.activation(self.line(f"Add({y}, {self.weight(count)})"))
        image = self.line(f"Reshape({y}, {self.shape(1, s, s, count)})")
        self.value = self.line(f"Transpose<perm=[0, 3, 1, 2]>({image})")
        self.channels = count

    def head(self) -> str:
        means = self.line(f"Flatten({self.line(f'GlobalAveragePool({self.value})')})")
        return self.line(f"MatMul({means}, {self.weight(self.channels, 10)})")


_BLOCKS: tuple[Callable[[Cnn], None], ...] = (
    Cnn.layer,
    Cnn.layer,
    Cnn.shortcut,
    Cnn.bottleneck,
    Cnn.branches,
    Cnn.shuffle,
    Cnn.crop,
    Cnn.transposed,
    Cnn.resized,
    Cnn.pool,
    Cnn.softmax,
    Cnn.tokens,
)


def cnn(seed: int) -> onnx.ModelProto:
    """Return network number ``seed``: two outputs of an image "x"."""
    rng = random.Random(seed)
    net = Cnn(rng, rng.choice((3, 8)), rng.choice((7, 12, 16)))
    head = f"drawn (float[1,{net.channels},{net.side},{net.side}] x)"
    net.layer()
    for _ in range(rng.randint(3, 7)):
        rng.choice(_BLOCKS)(net)
    last = net.head()
    ports = f"float[1,{net.channels},{net.side},{net.side}] {net.value}, float[1,10] {last}"
    lines = "\n".join(net.lines)
    return parsed(f"{head} => ({ports}) {{\n{lines}\n}}", net.weights)
