"""Pixels of pictures whose containers were read: Pillow decodes them. It is imported here alone.

A server imports this module with the first picture: Pillow and its libraries take 2 MiB of memory, and 10
of pages of files, which are reserved from the start.
"""

import hashlib
import warnings
from typing import BinaryIO, cast

import numpy as np
from PIL import Image, TiffImagePlugin, UnidentifiedImageError, WebPImagePlugin

from models.images.containers.source import (
    Container,
    ContainerError,
    DecoderView,
    EndError,
    PictureSource,
    UnknownKindError,
    ViewFile,
)

# What reads them comes at once. Else the first file that is neither JPEG nor PNG, or is broken, would have
# Pillow import all that it has: 50 modules.
Image.preinit()
_OTHERS = (TiffImagePlugin, WebPImagePlugin)

# Pillow warns of sizes and of odd files, on standard error, where logs of one format are written; the size
# is checked before a pixel is decoded. The filter is one for all threads: ``catch_warnings`` around each
# picture would put back what another thread has set.
warnings.filterwarnings("ignore", module=r"PIL\.")
# EXIF's orientations, and what makes each upright.
_TRANSPOSITIONS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# Rows that are compared at a time.
_BAND_ROWS = 64


def decode_pixels(file: BinaryIO, container: Container, scale: int) -> Image.Image:
    """Return the picture in ``file`` as RGB, upright, at one ``scale``-th of its size; blocks.

    Raises:
        ContainerError: it is damaged, also where views of it are not the same. Anything of Pillow's.
    """
    try:
        image = _stored(file, container, scale)
    except UnidentifiedImageError as exc:
        raise UnknownKindError from exc
    except Image.DecompressionBombError as exc:
        raise ContainerError("it has more pixels than Pillow decodes") from exc
    if (transposition := _TRANSPOSITIONS.get(container.orientation)) is not None:
        image = image.transpose(transposition)
    return _rgb(image)


def _stored(file: BinaryIO, container: Container, scale: int) -> Image.Image:
    """Return the picture as it is stored; raises as ``decode_pixels``."""
    source = PictureSource(file)
    *others, last = container.views(source)
    digests = {_digest(_opened(source, container, view, scale)) for view in others}
    image = _opened(source, container, last, scale)
    if digests and digests != {_digest(image)}:
        raise EndError("image file is truncated")
    return image


def _opened(
    source: PictureSource, container: Container, view: DecoderView, scale: int
) -> Image.Image:
    """Return the picture of one ``view``, decoded; raises what Pillow does."""
    file = cast("BinaryIO", ViewFile(source, view))
    image = Image.open(file, formats=(container.kind,))
    if image.size != container.size:
        raise ContainerError("its size is another than its header says")
    if scale > 1:
        image.draft(None, (container.size[0] // scale, container.size[1] // scale))
    image.load()
    return image


def _digest(image: Image.Image) -> bytes:
    """Return a digest of the pixels of ``image``."""
    digest = hashlib.blake2b()
    for top in range(0, image.height, _BAND_ROWS):
        bottom = min(top + _BAND_ROWS, image.height)
        digest.update(image.crop((0, top, image.width, bottom)).tobytes())
    return digest.digest()


def _rgb(image: Image.Image) -> Image.Image:
    """Return ``image`` as RGB; sixteen bits, and floats, become eight, where Pillow would clip."""
    if image.mode.startswith("I"):
        image = Image.fromarray((np.asarray(image).clip(0, 0xFFFF) >> 8).astype(np.uint8))
    if image.mode == "F":
        image = _grey(image)
    if image.mode == "RGB":
        image.load()
        return image
    return image.convert("RGB")


def _grey(image: Image.Image) -> Image.Image:
    """Return ``image``, of floats, in 256 shades: white is 255, or 1 where no pixel is more."""
    highest = image.getextrema()[1]
    white = 1.0 if isinstance(highest, float) and highest <= 1 else 255.0
    grey = Image.new("L", image.size)
    for top in range(0, image.height, _BAND_ROWS):
        band = image.crop((0, top, image.width, min(top + _BAND_ROWS, image.height)))
        shades = np.nan_to_num(np.asarray(band) * (255 / white)).clip(0, 255)
        grey.paste(Image.fromarray(shades.astype(np.uint8)), (0, top))
    return grey
