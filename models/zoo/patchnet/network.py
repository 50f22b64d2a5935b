"""Patch tunnels as graphs: one after the other in the order of nodes, each from its own patch."""

from models.zoo.builder import SkeletonBuilder, ZooTensor
from models.zoo.patchnet.design import Design, PatchLayer


def tunnel(net: SkeletonBuilder, design: Design, number: int) -> dict[str, ZooTensor]:
    """Add the tunnel of patch ``number``; return what each of its layers makes, by name.

    Weights are called after their layer, and after their tunnel where they are not shared.
    """
    patch = design.patches[number]
    x = net.crop(net.image, patch.top, patch.left, patch.height, patch.width)
    made = {}
    for layer in design.layers:
        label = f"{tunnel_label(design, number)}.{layer.name}"
        make = _bottleneck if layer.expansion else _stem
        made[layer.name] = x = make(net, x, layer, label)
    return made


def tunnel_label(design: Design, number: int) -> str:
    """Return what names of weights of the tunnel ``number`` begin with."""
    return "tunnel" if design.options.shared else f"tunnel{number + 1}"


def separable(net: SkeletonBuilder, x: ZooTensor, channels: int, label: str) -> ZooTensor:
    """Add a depthwise convolution and a pointwise one with a bias (SSDLite's predictor)."""
    y = net.conv(x, x.channels, 3, groups=x.channels, label=f"{label}.depthwise")
    y = net.relu6(net.norm(y, label=f"{label}.depthwise.norm"))
    return net.conv(y, channels, 1, bias=True, label=label)


def _stem(net: SkeletonBuilder, x: ZooTensor, layer: PatchLayer, label: str) -> ZooTensor:
    y = net.conv(x, layer.outputs[2], 3, layer.stride, label=label)
    return net.relu6(net.norm(y, label=f"{label}.norm"))


def _bottleneck(net: SkeletonBuilder, x: ZooTensor, layer: PatchLayer, label: str) -> ZooTensor:
    """Add expansion, depthwise convolution and projection as MobileNetV2 has them."""
    wide = layer.expanded

    def conv(
        part: str, y: ZooTensor, channels: int, kernel: int = 1, stride: int = 1, groups: int = 1
    ) -> ZooTensor:
        named = f"{label}.{part}"
        made = net.conv(y, channels, kernel, stride, groups=groups, label=named)
        return net.norm(made, label=f"{named}.norm")

    y = net.relu6(conv("expand", x, wide))
    y = net.relu6(conv("depthwise", y, wide, 3, stride=layer.stride, groups=wide))
    y = conv("project", y, layer.outputs[2])
    return net.add(x, y) if layer.inputs == layer.outputs else y
