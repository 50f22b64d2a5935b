"""One plane of bytes as a frame of Zstandard, where that is shorter.

Of random weights only the plane with sign and exponent is; trained ones with many equal numbers have more.
Entropy is all that there is to find, so a low level finds as much as a high one.
"""

import numpy as np
from numpy.typing import NDArray

_LEVEL = 3


class PlaneError(ValueError):
    """A plane cannot be opened."""


def closed_plane(plane: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return ``plane``, or the frame that it becomes where that is shorter."""
    import zstandard

    frame = zstandard.ZstdCompressor(level=_LEVEL).compress(plane.tobytes())
    return np.frombuffer(frame, np.uint8) if len(frame) < len(plane) else plane


def opened_plane(frame: NDArray[np.uint8], count: int) -> NDArray[np.uint8]:
    """Return the ``count`` bytes that ``frame`` holds.

    Raises:
        PlaneError: it is no frame, or one of another length.
    """
    import zstandard

    try:
        size = zstandard.frame_content_size(frame.data)
        if size != count:
            raise PlaneError(f"a frame of {size} bytes, not {count}")
        return np.frombuffer(zstandard.ZstdDecompressor().decompress(frame.data), np.uint8)
    except zstandard.ZstdError as exc:
        raise PlaneError(f"a damaged frame: {exc}") from exc
