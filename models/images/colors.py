"""Colours of classes, of boxes as of masks."""

import colorsys

Color = tuple[int, int, int]

# Multiples of the golden ratio lie far apart on the circle of hues, however many there are.
_GOLDEN = 0.618033988749895


def color_of(index: int) -> Color:
    """Return the colour of class ``index``: neighbours differ clearly."""
    red, green, blue = colorsys.hsv_to_rgb(index * _GOLDEN % 1, 0.85, 0.95)
    return round(red * 255), round(green * 255), round(blue * 255)
