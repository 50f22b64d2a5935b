"""What plain convolutions allocate while they run: it depends on how many threads compute.

ONNX Runtime unrolls the input of a convolution outside the blocked layout: all of it where it makes fewer
pixels than it has filters, else a segment at a time for each thread. Those that share one image are
bounded; of several groups or images each may have one.
"""

import numpy as np
from numpy.typing import NDArray

from models.packs.records.pieces import Unrolled
from models.packs.records.rows import UnrolledRows

# MLAS_CONV_WORKING_BUFFER_SIZE_PER_THREAD is 64 KiB; measured on x86-64, with 1 to 64 threads.
SEGMENT_BYTES = 68 << 10
#: So many threads share the one image of a convolution without groups.
SHARING_THREADS = 16


def unrolled_bytes(unrolled: Unrolled, threads: int) -> int:
    """Return a bound on what a piece allocates where ``threads`` threads compute."""
    segments = min(threads, unrolled.segments) * SEGMENT_BYTES
    return unrolled.beside_bytes + max(unrolled.whole_bytes, segments)


def unrolled_by_rows(unrolled: UnrolledRows, pixels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a bound on what a row operator allocates, for each number of ``pixels`` that it makes."""
    whole = np.where(pixels < unrolled.filters, unrolled.pixel_bytes * pixels, 0)
    bound: NDArray[np.int64] = np.maximum(whole, unrolled.segments * SEGMENT_BYTES)
    return bound
