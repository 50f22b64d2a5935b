"""A photograph that is kept, made smaller, so that what is found can be drawn on it and looked at."""

import io
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from models.images.placement import Size

if TYPE_CHECKING:
    from PIL.Image import Image

#: How long its longer side is at most.
MAX_SIDE = 1280
# A pixel as Pillow has it, its copy that is drawn on, and its part of the file, which may be twice there
# while that grows.
_PIXEL_BYTES = 4 + 4 + 2 * 4
# Bands of colours, and the font's picture of letters.
_DRAWING_BYTES = 2 << 20


# Of the memory that a request may hold a preview takes at most one part in so many.
_SHARE = 2


class Preview:
    """The photograph of a request, as it is drawn on; there after ``keep``.

    ``free_bytes``: what the request may hold.
    """

    def __init__(self, free_bytes: int) -> None:
        self._max_pixels = max(1, (free_bytes // _SHARE - _DRAWING_BYTES) // _PIXEL_BYTES)
        self.image: Image | None = None

    def size_of(self, size: Size) -> Size:
        """Return how large a photograph of ``size`` is here: a whole part of it, rounded up."""
        too_many = math.sqrt(size[0] * size[1] / self._max_pixels)
        factor = max(-(-max(size) // MAX_SIDE), math.ceil(too_many))
        return -(-size[0] // factor), -(-size[1] // factor)

    def n_bytes(self, size: Size) -> int:
        """Return what keeping, drawing and sending a photograph of ``size`` takes."""
        width, height = self.size_of(size)
        return _PIXEL_BYTES * width * height + _DRAWING_BYTES

    def keep(self, photograph: "Image", size: Size) -> None:
        """Keep ``photograph``, RGB and upright; ``size``: its own, if it was decoded at a smaller one."""
        size_here = self.size_of(size)
        factor = max(
            min(old // new for old, new in zip(photograph.size, size_here, strict=True)), 1
        )
        image = photograph.reduce(factor) if factor > 1 else photograph
        self.image = image if image.size == size_here else image.resize(size_here)

    def drawn(self, draw: "Callable[[Image], Image]") -> bytes:
        """Return what ``draw`` makes of the photograph as PNG. Blocks; it is kept no longer."""
        assert self.image is not None
        image, self.image = self.image, None
        file = io.BytesIO()
        draw(image).save(file, "PNG", compress_level=3)
        return file.getvalue()
