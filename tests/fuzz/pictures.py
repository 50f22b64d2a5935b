"""Fuzz the pictures of requests: ``python -m tests.fuzz.pictures [seconds] [first] [--minutes N]``.

Each example is a file as tests/fuzz/picture_files.py draws it. It is refused in one short line, or is the
picture that Pillow makes of the same file without what no answer needs; walking its container takes few
steps, and what opens of its beginning is what opens of all.
"""

import io
import random
import sys
import warnings

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from server.errors import InvalidRequestError, TooLargeError
from server.requests.pictures import OpenedPicture, Photograph, PictureLimits
from tests.fuzz.pack import chosen_run, run_examples
from tests.fuzz.picture_files import Drawn, drawn

_LIMITS = PictureLimits(max_pixels=10_000_000, max_bytes=64 << 20)
_SMALL_LIMITS = PictureLimits(max_pixels=10_000_000, max_bytes=2 << 20)
_MAX_MESSAGE = 300


def reference(data: bytes) -> Image.Image:
    """Return the picture in ``data`` as Pillow alone reads it, RGB and upright; raises what Pillow does."""
    with warnings.catch_warnings(
        action="ignore"
    ):  # of metadata that are wrong, which no answer needs
        image: Image.Image = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    if image.mode.startswith("I"):
        image = Image.fromarray((np.asarray(image).clip(0, 0xFFFF) >> 8).astype(np.uint8))
    return image.convert("RGB")


def answered(data: bytes, limits: PictureLimits) -> Photograph | str:
    """Return the picture in ``data``, or why it is refused."""
    try:
        return OpenedPicture(io.BytesIO(data), limits).decode()
    except (InvalidRequestError, TooLargeError) as exc:
        return str(exc)


def needed_bytes(data: bytes, limits: PictureLimits, *, is_complete: bool) -> int | None:
    """Return what the picture that begins with ``data`` takes; None: it is refused, or does not say it."""
    file = io.BytesIO(data)
    try:
        opened = OpenedPicture(file, limits) if is_complete else OpenedPicture.begun(file, limits)
    except (InvalidRequestError, TooLargeError):
        return None
    return None if opened is None else opened.needed_bytes


def run(seed: int) -> bool:
    """Read one file; return whether it is a picture."""
    rng = random.Random(seed)
    file = drawn(rng)
    limits = rng.choice((_LIMITS, _SMALL_LIMITS))
    result = answered(file.data, limits)
    partial = needed_bytes(
        file.data[: rng.randrange(len(file.data) + 1)], limits, is_complete=False
    )
    if partial is not None:
        assert partial == needed_bytes(file.data, limits, is_complete=True), file.words
    if isinstance(result, str):
        assert result.isprintable(), file.words
        assert len(result) <= _MAX_MESSAGE, file.words
        return False
    _check(file, result)
    return True


def _check(file: Drawn, result: Photograph) -> None:
    assert result.image.mode == "RGB"
    if file.plain is None:
        return
    expected = reference(file.plain)
    assert result.size == expected.size, file.words
    if result.image.size == expected.size:
        np.testing.assert_array_equal(_array(result.image), _array(expected), file.words)


def _array(image: Image.Image) -> NDArray[np.uint8]:
    return np.asarray(image)


def main(arguments: list[str]) -> int:
    seconds, first = chosen_run(arguments)
    return run_examples(run, seconds, first)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
