"""Detection layers: what they need from the layer before them, and their anchors."""

from typing import Literal

from models.darknet.layers.layer import DarknetLayer
from models.darknet.layers.parameters import RegionParameters, YoloParameters
from models.darknet.layers.scope import SectionScope

_NMS = ("default", "greedynms", "diounms", "cornersnms")


def yolo(scope: SectionScope) -> DarknetLayer:
    """Return a [yolo] layer."""
    options = scope.options
    anchors = _anchors(scope)
    mask = options.integers("mask") if options.has("mask") else tuple(range(len(anchors)))
    for number in mask:
        if not 0 <= number < len(anchors):
            options.fail(f"mask: there is no anchor {number} among {len(anchors)}", "mask")
    diou = options.choice("nms_kind", "default", _NMS) == "diounms"
    nms: Literal["greedy", "diou"] = "diou" if diou else "greedy"
    parameters = YoloParameters(
        tuple(anchors[number] for number in mask),
        _classes(scope, len(mask)),
        options.number("scale_x_y", 1.0),
        options.flag("new_coords"),
        nms,
        options.number("beta_nms", 0.6),
    )
    return scope.layer(scope.input, parameters)


def region(scope: SectionScope) -> DarknetLayer:
    """Return a [region] layer, whose boxes have four coordinates."""
    anchors = _anchors(scope)
    classes = _classes(scope, len(anchors))
    return scope.layer(
        scope.input, RegionParameters(anchors, classes, scope.options.flag("softmax"))
    )


def _anchors(scope: SectionScope) -> tuple[tuple[float, float], ...]:
    options = scope.options
    numbers, num = options.numbers("anchors"), options.integer("num", 1)
    if len(numbers) != 2 * num:
        options.fail(f"num={num} anchors need {2 * num} numbers, not {len(numbers)}", "anchors")
    if min(numbers) <= 0:
        options.fail("anchors must be above 0", "anchors")
    return tuple(zip(numbers[::2], numbers[1::2], strict=True))


def _classes(scope: SectionScope, anchors: int) -> int:
    """Return the classes, which must be those of other heads and fit the channels of the input."""
    classes = scope.options.integer("classes", 20)
    needed, channels = anchors * (5 + classes), scope.input[0]
    if channels != needed:
        scope.options.fail(
            f"{anchors} anchors of 5 + {classes} numbers need {needed} channels,"
            f" the previous layer has {channels}"
        )
    for layer in scope.before:
        if (
            isinstance(layer.parameters, YoloParameters | RegionParameters)
            and layer.parameters.classes != classes
        ):
            scope.options.fail(
                f"classes={classes}, but layer {layer.index} has {layer.parameters.classes}",
                "classes",
            )
    return classes
