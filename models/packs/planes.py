"""One plane of bytes as a frame of Zstandard, where that is shorter.

Of random weights only the plane with sign and exponent is; trained ones with many equal numbers have more.
Entropy is all that there is to find: level 1, which looks for little else, makes shorter frames of it than
higher ones, and these are opened faster.
"""

import threading
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import zstandard

_LEVEL = 1
#: What opening a frame takes beside what comes out (ZSTD_estimateDCtxSize, rounded up).
OPENER_BYTES = 256 << 10


class PlaneError(ValueError):
    """A plane cannot be opened."""


def closed_plane(plane: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return ``plane``, or the frame that it becomes where that is shorter."""
    import zstandard

    frame = zstandard.ZstdCompressor(level=_LEVEL).compress(plane.tobytes())
    return np.frombuffer(frame, np.uint8) if len(frame) < len(plane) else plane


_of_thread = threading.local()


def _opener() -> "zstandard.ZstdDecompressor":
    """Return what opens frames on this thread; to make one takes as long as a small frame."""
    import zstandard

    found: zstandard.ZstdDecompressor | None = getattr(_of_thread, "opener", None)
    if found is None:
        found = _of_thread.opener = zstandard.ZstdDecompressor()
    return found


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
        return np.frombuffer(_opener().decompress(frame.data), np.uint8)
    except zstandard.ZstdError as exc:
        raise PlaneError(f"a damaged frame: {exc}") from exc
