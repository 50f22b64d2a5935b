"""BMP: the header, in one of the sizes that it has."""

import struct

from models.images.containers.source import (
    Container,
    ContainerError,
    EndError,
    PictureSource,
    full_file,
)

SIGNATURE = b"BM"
_FILE_HEADER_BYTES = 14
_CORE_BYTES = 12
_HEADER_BYTES = (40, 52, 56, 64, 108, 124)
_RUN_LENGTHS = {1: 8, 2: 4}  # of how many bits a pixel
_BIT_FIELDS = 3
_MAX_COLOURS = 256
# Run lengths are decoded in Python: so much of them takes half a second.
_MAX_RUN_BYTES, _MAX_RUN_PIXELS = 1 << 18, 1 << 21


def read_bmp(source: PictureSource) -> Container:
    """Return what the header says.

    Raises:
        ContainerError: it is damaged, or of a kind that is not read. EndError: the file ends before.
    """
    (length,) = struct.unpack("<I", source.take(_FILE_HEADER_BYTES, 4))
    if length == _CORE_BYTES:
        header = source.take(_FILE_HEADER_BYTES, length)
        width, height, _, bits = struct.unpack_from("<HHHH", header, 4)
        compression, colours = 0, 0
    elif length in _HEADER_BYTES:
        header = source.take(_FILE_HEADER_BYTES, length)
        width, height, _, bits, compression = struct.unpack_from("<IiHHI", header, 4)
        (colours,) = struct.unpack_from("<I", header, 32)
        height = abs(height)
    else:
        raise ContainerError(f"a BMP with a header of {length} bytes")
    if bits <= 8 and colours > _MAX_COLOURS:
        raise ContainerError(f"a BMP with {colours} colours")
    _check_runs(source, compression, bits, width * height)
    pixel_bytes = 8 if bits <= 8 or compression == _BIT_FIELDS else 4
    return Container("BMP", (width, height), pixel_bytes, full_file, 8 * width)


def _check_runs(source: PictureSource, compression: int, bits: int, n_pixels: int) -> None:
    if compression not in _RUN_LENGTHS:
        return
    if not source.is_complete:
        raise EndError("run lengths are limited by all of the file")
    if _RUN_LENGTHS[compression] != bits:
        raise ContainerError("a BMP with run lengths of other pixels")
    if source.size > _MAX_RUN_BYTES or n_pixels > _MAX_RUN_PIXELS:
        raise ContainerError(
            f"a BMP with run lengths is taken up to {_MAX_RUN_PIXELS >> 20} megapixels in "
            f"{_MAX_RUN_BYTES >> 10} KiB; send it uncompressed"
        )
