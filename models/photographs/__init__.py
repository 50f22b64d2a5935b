"""A few real photographs: what random weights are calibrated on."""

from pathlib import Path

from PIL import Image

from models import default

FOLDER = Path(__file__).parent


def photographs() -> list[Image.Image]:
    """Return the photographs (RGB, about 400 x 280 pixels), always in the same order."""
    paths = [default.FOLDER / "cat.png", *sorted(FOLDER.glob("*.jpg"))]
    return [Image.open(path).convert("RGB") for path in paths]
