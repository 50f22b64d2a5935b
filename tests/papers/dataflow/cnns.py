"""CNNs to convert: seed 001's Fig. 1, and two real networks with batch norm and activations folded."""

from dataclasses import dataclass, field

from models.network.windows import Window
from papers.cnn.layers import Cnn, CnnLayer, Edge, Shape


def figure_1() -> Cnn:
    """Return the worked example of seed 001."""
    layers = (
        CnnLayer("n1", "input", Shape(32, 32, 1)),
        CnnLayer("n2", "conv", Shape(16, 16, 4), Window(17)),
        CnnLayer("n3", "conv", Shape(4, 4, 3), Window(5, 3, before=-1, behind=-1)),
        CnnLayer("n4", "FC", Shape(1, 1, 2), Window(4)),
        CnnLayer("n5", "output", Shape(1, 1, 2)),
    )
    return Cnn("Fig. 1", layers, tuple(Edge(number, number + 1) for number in range(4)))


@dataclass
class Building:
    """A CNN layer by layer; each method returns the number of the layer that it added."""

    layers: list[CnnLayer] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)

    def add(self, operator: str, output: Shape, window: Window, *sources: int) -> int:
        number = len(self.layers)
        self.layers.append(CnnLayer(f"{operator}{number}", operator, output, window))
        self.edges += [Edge(source, number) for source in sources]
        return number

    def window(
        self, operator: str, source: int, channels: int, kernel: int, stride: int = 1
    ) -> int:
        """Add a convolution or pool whose padding keeps ``1 / stride`` of the rows."""
        read, pad = self.layers[source].output, kernel // 2
        height, width = ((n + 2 * pad - kernel) // stride + 1 for n in (read.height, read.width))
        below = (height - 1) * stride - pad + kernel - read.height
        window = Window(kernel, stride, before=pad, behind=below)
        return self.add(operator, Shape(height, width, channels), window, source)

    def sum(self, one: int, other: int) -> int:
        return self.add("add", self.layers[one].output, Window(), one, other)

    def classifier(self, source: int) -> None:
        """Add the mean of all pixels, a thousand classes, and the output."""
        read = self.layers[source].output
        whole = Window(read.height, read.height)
        mean = self.add("mean", Shape(1, 1, read.channels), whole, source)
        classes = self.add("FC", Shape(1, 1, 1000), Window(), mean)
        self.add("output", Shape(1, 1, 1000), Window(), classes)

    def cnn(self, name: str) -> Cnn:
        return Cnn(name, tuple(self.layers), tuple(self.edges))


def mobilenet_v2(pixels: int = 224) -> Cnn:
    made = Building()
    last = made.add("input", Shape(pixels, pixels, 3), Window())
    last = made.window("conv", last, 32, 3, 2)
    last = made.window("depthwise", last, 32, 3)
    last = made.window("conv", last, 16, 1)
    stages = ((24, 2, 2), (32, 3, 2), (64, 4, 2), (96, 3, 1), (160, 3, 2), (320, 1, 1))
    for channels, repeats, first_stride in stages:
        for repeat in range(repeats):
            source, stride = last, first_stride if repeat == 0 else 1
            wide = 6 * made.layers[source].output.channels
            last = made.window("conv", source, wide, 1)
            last = made.window("depthwise", last, wide, 3, stride)
            last = made.window("conv", last, channels, 1)
            if repeat:
                last = made.sum(last, source)
    made.classifier(made.window("conv", last, 1280, 1))
    return made.cnn("MobileNetV2")


def resnet_18(pixels: int = 224) -> Cnn:
    made = Building()
    last = made.add("input", Shape(pixels, pixels, 3), Window())
    last = made.window("conv", last, 64, 7, 2)
    last = made.window("pool", last, 64, 3, 2)
    for channels in (64, 128, 256, 512):
        for repeat in range(2):
            stride = 2 if repeat == 0 and channels > 64 else 1
            inner = made.window("conv", last, channels, 3, stride)
            inner = made.window("conv", inner, channels, 3)
            beside = made.window("conv", last, channels, 1, stride) if stride > 1 else last
            last = made.sum(inner, beside)
    made.classifier(last)
    return made.cnn("ResNet-18")
