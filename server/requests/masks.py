"""Masks on their way to a client or a file: PNG with a palette, and runs."""

from collections.abc import Iterator, Sequence

import numpy as np

from models.segmentation import NONE, Bytes, Counted, Mask
from server.requests.png import chunk, pieces

# Pixels of a PNG are numbers in a table of colours.
_PALETTE = 3


def png(mask: Mask) -> Iterator[bytes]:
    """Return the pieces of a PNG whose pixels are classes, 255 for none, each in the colour of its class.

    The background is transparent, as is what is no class. A chunk of text, "classes", has their labels, one
    a line.
    """
    indices = range(NONE + 1)
    palette = bytes(value for index in indices for value in mask.color(index))
    opaque = bytes(0 if mask.segmentation.is_nothing(index) else 255 for index in indices)
    names = "\n".join(mask.segmentation.labels).encode()
    more = (
        chunk(b"PLTE", palette),
        chunk(b"tRNS", opaque),
        chunk(b"iTXt", b"classes\0\0\0\0\0" + names) if names else b"",
    )
    return pieces(mask.size, 8, _PALETTE, b"".join(more), map(_unfiltered, mask.bands()))


def _unfiltered(band: Bytes) -> Bytes:
    rows = np.zeros((len(band), band.shape[1] + 1), np.uint8)  # before each row its filter: none
    rows[:, 1:] = band
    return rows


def runs(mask: Mask, counted: Counted) -> Iterator[Sequence[int]]:
    """Yield the runs of the mask, row after row: class, length, class, length, and so on; some at a time.

    ``counted`` is shown all of them.
    """
    open_class, open_length = -1, 0
    for band in mask.bands():
        counted.add(band)
        flat = band.ravel()
        ends = np.append(np.flatnonzero(flat[1:] != flat[:-1]) + 1, flat.size)
        lengths = np.diff(ends, prepend=0)
        classes = flat[ends - 1].astype(np.int64)
        if classes[0] == open_class:
            lengths[0] += open_length
        elif open_length:
            yield (open_class, open_length)
        open_class, open_length = int(classes[-1]), int(lengths[-1])
        closed = np.stack([classes[:-1], lengths[:-1]], axis=1).ravel()
        yield closed.tolist()
    yield (open_class, open_length)
