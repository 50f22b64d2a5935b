"""A patch tunnel within a memory budget: the channels of each layer (seed 004, Sections 3.2, 3.3).

Everything is counted in numbers, not bytes: what a number takes depends on the precision.
"""

from dataclasses import dataclass, replace
from itertools import pairwise

from models.errors import ModelError

# Input segmentation: an image as overlapping patches (seed 004, Section 3.1, Eq. 1).

#: Height, width and channels.
Size = tuple[int, int, int]

MOST_PATCHES = 64
#: Of a patch: as many as the first kernel takes.
LEAST_SIDE = 3


@dataclass(frozen=True)
class Patch:
    """Rows [top, top + height) and columns [left, left + width) of the image."""

    top: int
    left: int
    height: int
    width: int


def segment(image: Size, patches: int, margin: int, central: bool) -> tuple[Patch, ...]:
    """Return a grid of ``patches`` of one size over ``image``, row by row, then the central patch.

    A patch has (h / rows + margin) x (w / columns + margin) pixels (Eq. 1, where rows = columns = sqrt k),
    but never more than the image. Patches at the border end there, those between lie evenly, so
    neighbours of a grid of two share 2 x margin.

    Raises:
        ModelError: there is no such grid, or it leaves a patch fewer pixels than a kernel takes.
    """
    rows, columns = grid(patches)
    if margin < 0:
        raise ModelError(f"patchnet: margin {margin} is negative")
    height, width = (
        min(side, side // parts + margin) if side >= parts else 0
        for side, parts in zip(image[:2], (rows, columns), strict=True)
    )
    _check_pixels(image, (height, width), f"a grid of {rows} x {columns} patches")
    cells = [
        Patch(top, left, height, width)
        for top in _starts(image[0], height, rows)
        for left in _starts(image[1], width, columns)
    ]
    if central:
        cells.append(Patch((image[0] - height) // 2, (image[1] - width) // 2, height, width))
    return tuple(cells)


def _check_pixels(image: Size, patch: tuple[int, int], what: str) -> None:
    if min(patch) < LEAST_SIDE:
        left = "no pixels" if min(patch) < 1 else f"{patch[0]} x {patch[1]} pixels"
        raise ModelError(
            f"patchnet: {what} leaves {left} of an image of {image[0]} x {image[1]}:"
            f" {LEAST_SIDE} x {LEAST_SIDE} are the least"
        )


def grid(patches: int) -> tuple[int, int]:
    """Return rows and columns of a grid of so many patches, as square as it can be.

    Raises:
        ModelError: none or too many.
    """
    _check_count(patches)
    rows = max(n for n in range(1, patches + 1) if n * n <= patches and patches % n == 0)
    return rows, patches // rows


def _check_count(patches: int) -> None:
    """Check that there may be so many patches.

    Raises:
        ModelError: none or too many.
    """
    if not 1 <= patches <= MOST_PATCHES:
        raise ModelError(f"patchnet: {patches} patches are not from 1 to {MOST_PATCHES}")


def _starts(side: int, extent: int, parts: int) -> list[int]:
    """Return where ``parts`` ranges of ``extent`` begin that lie evenly in ``side``."""
    return [(side - extent) * n // max(parts - 1, 1) for n in range(parts)]


# The design: channels of each layer that fit into the budget.

# Channels and blocks of the stages, each at half the resolution of the one before: about the paper's
# 3.34 million parameters for 1000 classes.
_STAGES = ((16, 2), (48, 3), (80, 3), (160, 2))
# A stage ends the tunnel where the image has become so small.
_LEAST_STAGE_SIDE = 3
# Channels are multiples of this where there are enough: kernels compute so many at once, and only
# tensors of whole blocks run on rows.
BLOCK = 16
_STEM_STRIDES = (1, 2, 4)
_MOST_EXPANSION = 16
# A budget that everything fits into.
_ENDLESS = 1 << 40
_MOST_STEM = 64


@dataclass(frozen=True)
class DesignOptions:
    """What is asked for.

    ``budget``: numbers; ``image``: height, width, channels; ``expansion``: t; ``stem``: channels behind the
    first convolution, the image's own where a patch alone nearly fills the budget. ``whole``: ``patches``
    tunnels that all see the whole image (what the seed compares with, Table 5); no margin, no central one.
    ``shared``: all tunnels have the same weights (the seed's Section 5). ``width``: factor for the channels
    of the stages.
    """

    budget: int = 64 << 10
    image: Size = (224, 224, 3)
    patches: int = 4
    central: bool = True
    margin: int = 18
    expansion: int = 6
    stem: int = 3
    whole: bool = False
    shared: bool = False
    width: float = 1.0


@dataclass(frozen=True)
class PatchLayer:
    """A convolution (``expansion`` 0) or an inverted bottleneck, which halves the image or does not.

    ``inputs``, ``outputs``: height, width, channels.
    """

    name: str
    inputs: Size
    outputs: Size
    stride: int
    expansion: int = 0

    @property
    def expanded(self) -> int:
        """Return the channels of the depthwise convolution, whole blocks of them: they cost no memory."""
        return -(-self.expansion * self.inputs[2] // BLOCK) * BLOCK

    @property
    def peak(self) -> int:
        """Return the numbers that it holds at once.

        Input and output (Eq. 2); of a bottleneck, whose channels pass through expansion, depthwise and
        projection one at a time, also one channel in front of the depthwise convolution and one behind it
        (Eq. 3).
        """
        return held(self.inputs, self.outputs, self.expansion > 0)


def held(inputs: Size, outputs: Size, bottleneck: bool) -> int:
    """Return the numbers that a layer from ``inputs`` to ``outputs`` holds; see `Layer.peak`."""
    (high, wide, _), (rows, columns, _) = inputs, outputs
    between = high * wide + rows * columns if bottleneck else 0
    return _numbers(inputs) + between + _numbers(outputs)


@dataclass(frozen=True)
class Design:
    """Tunnels of the same ``layers``, one for each of ``patches``; their outputs are summed up."""

    options: DesignOptions
    patches: tuple[Patch, ...]
    layers: tuple[PatchLayer, ...]

    @property
    def peak(self) -> int:
        """Return the numbers that are held at most while a tunnel runs."""
        return max(layer.peak for layer in self.layers)


def design(options: DesignOptions, stages: int = 1) -> Design:
    """Return the network for ``options``, with so many ``stages`` or more.

    The stem has the smallest stride with which it fits; each stage as many channels as fit, up to its own
    number. Channels do not depend on the expansion, and so neither does the peak.

    Raises:
        ModelError: no such patches, expansion or stem; patches are too small for the stages; or no network
            fits: the smallest that does is named.
    """
    for name, value, most in (
        ("expansion", options.expansion, _MOST_EXPANSION),
        ("stem", options.stem, _MOST_STEM),
    ):
        if not 1 <= value <= most:
            raise ModelError(f"patchnet: {name} {value} is not from 1 to {most}")
    patches = _patches(options)
    patch = (patches[0].height, patches[0].width, options.image[2])
    layers = _tunnel(patch, options, stages)
    if layers is None:
        if _tunnel(patch, replace(options, budget=_ENDLESS), stages) is None:
            raise ModelError(
                f"patchnet: patches of {patch[0]} x {patch[1]} pixels end before stage {stages}"
            )
        raise ModelError(
            f"patchnet: no network fits into {options.budget} numbers (one byte each as int8, four as"
            f" fp32): patches of {patch[0]} x {patch[1]} x {patch[2]} take {_numbers(patch)};"
            f" the smallest that does takes {_least(patch, options, stages)}"
        )
    return Design(options, patches, layers)


def _patches(options: DesignOptions) -> tuple[Patch, ...]:
    if options.whole:
        _check_count(options.patches)
        return (Patch(0, 0, *options.image[:2]),) * options.patches
    return segment(options.image, options.patches, options.margin, options.central)


def _tunnel(patch: Size, options: DesignOptions, stages: int) -> tuple[PatchLayer, ...] | None:
    stems = (_stem(patch, stride, options) for stride in _STEM_STRIDES)
    tunnels = (_behind(stem, options, stages) for stem in stems if stem is not None)
    return next((layers for layers in tunnels if layers is not None), None)


def _behind(stem: PatchLayer, options: DesignOptions, stages: int) -> tuple[PatchLayer, ...] | None:
    """Return ``stem`` and the stages that follow it; None where one does not fit, or they are too few."""
    layers = [stem]
    for number, stage in enumerate(_STAGES, 1):
        if number > 1 and min(layers[-1].outputs[:2]) <= _LEAST_STAGE_SIDE:
            return tuple(layers) if number > stages else None
        stage_layers = _stage(number, layers[-1].outputs, stage, options)
        if stage_layers is None:
            return None
        layers += stage_layers
    return tuple(layers)


def _stem(patch: Size, stride: int, options: DesignOptions) -> PatchLayer | None:
    outputs = (_halved(patch[0], stride), _halved(patch[1], stride), options.stem)
    stem = PatchLayer("stem", patch, outputs, stride)
    return stem if stem.peak <= options.budget else None


def _stage(
    number: int, inputs: Size, wanted: tuple[int, int], options: DesignOptions
) -> list[PatchLayer] | None:
    """Return a bottleneck that halves the image, and some that add to what they read."""
    rows, columns = _halved(inputs[0], 2), _halved(inputs[1], 2)
    most, blocks = max(1, int(wanted[0] * options.width)), wanted[1]

    def fits(channels: int) -> bool:
        outputs = (rows, columns, channels)
        return all(
            held(a, b, True) <= options.budget for a, b in pairwise((inputs, outputs, outputs))
        )

    channels = max((n for n in range(1, most + 1) if fits(n)), default=0)
    if channels < inputs[2] and channels < most:
        return None  # less than what comes: the stages before took too much
    outputs = (rows, columns, _rounded(channels))
    return [
        PatchLayer(
            f"stage{number}.{block}",
            outputs if block > 1 else inputs,
            outputs,
            1 if block > 1 else 2,
            options.expansion,
        )
        for block in range(1, blocks + 1)
    ]


def _least(patch: Size, options: DesignOptions, stages: int) -> int:
    """Return the smallest budget in which a tunnel for ``patch`` fits."""
    low, high = _numbers(patch), _ENDLESS
    while high - low > 1:
        middle = (low + high) // 2
        given = replace(options, budget=middle)
        low, high = (low, middle) if _tunnel(patch, given, stages) else (middle, high)
    return high


def _numbers(size: Size) -> int:
    height, width, channels = size
    return height * width * channels


def _halved(side: int, stride: int) -> int:
    """Return the side behind a kernel of three with padding of one."""
    return (side - 1) // stride + 1


def _rounded(channels: int) -> int:
    return channels - channels % BLOCK if channels > BLOCK else channels
