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
SEGMENT_BYTES = 70 << 10
# The allocator's own, beside what is unrolled at once. Measured 1 to 5 KiB.
_BESIDE_BYTES = 8 << 10
#: So many threads share the one image of a convolution without groups.
SHARING_THREADS = 16


def unrolled_bytes(unrolled: Unrolled, threads: int) -> int:
    """Return a bound on what a piece allocates where ``threads`` threads compute."""
    segments = min(threads, unrolled.segments) * SEGMENT_BYTES
    whole = unrolled.whole_bytes + _BESIDE_BYTES if unrolled.whole_bytes else 0
    return unrolled.beside_bytes + max(whole, segments)


def unrolled_by_rows(unrolled: UnrolledRows, pixels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a bound on what a row operator allocates, for each number of ``pixels`` that it makes."""
    each = unrolled.pixel_bytes * pixels + _BESIDE_BYTES
    whole = np.where((pixels < unrolled.filters) & (pixels > 0), each, 0)
    bound: NDArray[np.int64] = np.maximum(whole, unrolled.segments * SEGMENT_BYTES)
    return bound
