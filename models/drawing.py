"""Boxes, masks and depth drawn on a photograph, for people to look at."""

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from models.depth import DepthMap
from models.detection.boxes import Box
from models.segmentation import NONE, Bytes, Color, Mask, color_of

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont

_BRIGHT = 140  # of 255: text on colours above it is black
_MIN_FONT = 10
_MAX_LETTERS = 80
# Key points that are less visible are where the network only guesses.
_MIN_VISIBILITY = 0.5
# Half of a mask's colours, half of the photograph's.
_SHARE = 0.5
# Colours of depth, from the least to the greatest number.
_RAMP = np.array(
    [(13, 8, 135), (126, 3, 168), (204, 71, 120), (248, 149, 64), (240, 249, 33)], np.float32
)


def text_color(background: Color) -> Color:
    """Return black or white, whichever can be read on ``background`` (luma of ITU-R BT.601)."""
    red, green, blue = background
    luma = 0.299 * red + 0.587 * green + 0.114 * blue
    return (0, 0, 0) if luma > _BRIGHT else (255, 255, 255)


def draw_boxes(image: Image.Image, boxes: Sequence[Box]) -> Image.Image:
    """Return a copy of ``image`` (RGB) with ``boxes``, best on top, each with label and score.

    Of rotated boxes with their corners, of poses with the key points, of objects with the mask.
    """
    drawn = image.copy()
    canvas = ImageDraw.Draw(drawn)
    width = line_width(image.size)
    font = ImageFont.load_default(max(_MIN_FONT, round(sum(image.size) / 70)))
    ascending = sorted(boxes, key=lambda box: box.score)
    for box in ascending:
        _fill(drawn, box)
    for box in ascending:
        _outline(canvas, box, image.size, width)
    for box in ascending:
        _label(canvas, box, image.size, font, width)
    return drawn


def _fill(drawn: Image.Image, box: Box) -> None:
    """Lay the colour of ``box`` over what of it is the object, if that is known."""
    if box.mask is None:
        return
    left, top, right, bottom = _pixels(box, drawn.size)
    cells = Image.fromarray(box.mask.cells().astype(np.uint8) * round(255 * _SHARE))
    size = right - left + 1, bottom - top + 1
    covered = cells.resize(size, Image.Resampling.BILINEAR)
    drawn.paste(color_of(box.index), (left, top), covered)


def _outline(canvas: ImageDraw.ImageDraw, box: Box, size: tuple[int, int], width: int) -> None:
    """Draw the edges of ``box``, or those between its corners, and a dot on each visible key point."""
    color = color_of(box.index)
    if box.corners is None:
        canvas.rectangle(_pixels(box, size), outline=color, width=width)
    else:
        closed = [(corner[0], corner[1]) for corner in (*box.corners, box.corners[0])]
        canvas.line(closed, fill=color, width=width)
    for x, y, *visibility in box.keypoints or ():
        if not visibility or visibility[0] >= _MIN_VISIBILITY:
            canvas.ellipse((x - width, y - width, x + width, y + width), fill=color)


def line_width(size: tuple[int, int]) -> int:
    """Return the width of lines on a picture of ``size``: a 250th of its mean side."""
    return max(1, round(sum(size) / 500))


def _pixels(box: Box, size: tuple[int, int]) -> tuple[int, int, int, int]:
    """Return the edges as pixels of a picture of ``size``, all inside it."""
    right, bottom = size[0] - 1, size[1] - 1
    x_min, y_min, x_max, y_max = box.edges
    left, top = round(min(max(x_min, 0), right)), round(min(max(y_min, 0), bottom))
    # The upper edges are where a pixel ends.
    return (
        left,
        top,
        max(left, round(min(max(x_max - 1, 0), right))),
        max(top, round(min(max(y_max - 1, 0), bottom))),
    )


def _label(
    canvas: ImageDraw.ImageDraw, box: Box, size: tuple[int, int], font: Font, margin: int
) -> None:
    """Write label and score on a filled ground above the box, moved until it is in the picture."""
    text = f"{_line(box.label)} {box.score:.2f}"
    text = _fitting(canvas, text, font, size[0] - 2 * margin)
    if not text:
        return
    x_min, y_min, x_max, y_max = canvas.textbbox((0, 0), text, font=font)
    width, height = x_max - x_min + 2 * margin, y_max - y_min + 2 * margin
    if height > size[1]:
        return
    left, top, _, _ = _pixels(box, size)
    left = max(0, min(left, int(size[0] - width)))
    top = int(top - height if top >= height else min(top, size[1] - height))
    color = color_of(box.index)
    canvas.rectangle((left, top, left + width - 1, top + height - 1), fill=color)
    place = (left + margin - x_min, top + margin - y_min)
    canvas.text(place, text, fill=text_color(color), font=font)


def _line(text: str) -> str:
    """Return the beginning of ``text`` without what fonts have no picture of, such as ends of lines."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:_MAX_LETTERS])


def _fitting(canvas: ImageDraw.ImageDraw, text: str, font: Font, width: int) -> str:
    """Return the longest beginning of ``text`` that is at most ``width`` pixels wide."""
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        left, _, right, _ = canvas.textbbox((0, 0), text[:middle], font=font)
        low, high = (middle, high) if right - left <= width else (low, middle - 1)
    return text[:low]


def draw_mask(image: Image.Image, mask: Mask) -> Image.Image:
    """Return a copy of ``image`` (RGB), of the size of ``mask``, with the colours of classes over it."""
    colors = np.array([mask.color(index) for index in range(NONE + 1)], np.float32)
    nothing = np.array([mask.segmentation.is_nothing(index) for index in range(NONE + 1)])
    drawn = image.copy()
    top = 0
    for band in mask.bands():
        place = 0, top, image.width, top + len(band)
        drawn.paste(
            Image.fromarray(_blended(np.asarray(image.crop(place)), band, colors, nothing)), place
        )
        top += len(band)
    return drawn


def _blended(pixels: Bytes, band: Bytes, colors: np.ndarray, nothing: np.ndarray) -> Bytes:
    mixed = pixels * np.float32(1 - _SHARE) + colors[band] * np.float32(_SHARE)
    return np.where(nothing[band][:, :, None], pixels, mixed.round().astype(np.uint8))


def draw_depth(image: Image.Image, depth: DepthMap) -> Image.Image:
    """Return a copy of ``image`` (RGB), of the size of ``depth``, with a colour for each number over it."""
    drawn = image.copy()
    top, span = 0, depth.range()
    stops = np.arange(len(_RAMP))
    for band in depth.bands():
        area = 0, top, image.width, top + len(band)
        values = span.pixels(band, len(_RAMP) - 1)
        colors = np.stack([np.interp(values, stops, channel) for channel in _RAMP.T], axis=-1)
        mixed = np.asarray(image.crop(area)) * (1 - _SHARE) + colors * _SHARE
        drawn.paste(Image.fromarray(mixed.round().astype(np.uint8)), area)
        top += len(band)
    return drawn
