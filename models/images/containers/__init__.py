"""What containers of pictures say before a decoder opens them: how much it would take, and what it needs.

A decoder allocates for texts, profiles, tables, strips and frames as a file says, and sees limits of pixels
only. Here each format's structure is walked with bounded steps and memory; what no answer depends on is
passed over, and the rest is what a decoder gets.
"""

from collections.abc import Callable

from models.images.containers import bmp, gif, jpeg, png, ppm, tiff, webp
from models.images.containers.source import Container, EndError, PictureSource

_START_BYTES = 12


def read_container(source: PictureSource) -> Container | None:
    """Return what the container of the picture in ``source`` says; None: it is none that is read.

    Raises:
        ContainerError: it is damaged, or of a kind that is not read. EndError: the file ends too soon.
    """
    start = source.take(0, min(source.size, _START_BYTES))
    reader = _reader(start)
    if reader is None:
        if not source.is_complete and source.size < _START_BYTES:
            raise EndError("too short to identify")
        return None
    return reader(source)


def _reader(start: bytes) -> Callable[[PictureSource], Container] | None:
    """Return what reads a file with that ``start``; None: nothing does."""
    for signatures, reader in _READERS.items():
        if start.startswith(signatures):
            return reader
    if webp.is_webp(start):
        return webp.read_webp
    return ppm.read_ppm if ppm.SIGNATURE.match(start) else None


_READERS: dict[tuple[bytes, ...], Callable[[PictureSource], Container]] = {
    (jpeg.SIGNATURE,): jpeg.read_jpeg,
    (png.SIGNATURE,): png.read_png,
    gif.SIGNATURES: gif.read_gif,
    tiff.SIGNATURES: tiff.read_tiff,
    (bmp.SIGNATURE,): bmp.read_bmp,
}
