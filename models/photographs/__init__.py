"""A few real photographs: what random weights are calibrated on."""

from functools import cache
from pathlib import Path

from PIL import Image

from models import default

FOLDER = Path(__file__).parent


@cache
def photographs() -> tuple[Image.Image, ...]:
    """Return the photographs (RGB, about 400 x 280 pixels), always the same ones: not to be changed."""
    paths = [default.FOLDER / "cat.png", *sorted(FOLDER.glob("*.jpg"))]
    return tuple(Image.open(path).convert("RGB") for path in paths)
