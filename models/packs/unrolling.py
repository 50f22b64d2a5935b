"""What plain convolutions allocate while they run: it depends on how many threads compute.

ONNX Runtime unrolls the input of a convolution outside the blocked layout: all of it, or a segment at a
time for each thread. Those that share one image are bounded; of several groups or images each may have one.
"""

from models.packs.records.pieces import Unrolled

# Measured 64 KiB on x86-64, with 1 to 64 threads.
SEGMENT_BYTES = 128 << 10
#: So many threads share the one image of a convolution without groups.
SHARING_THREADS = 16


def unrolled_bytes(unrolled: Unrolled, threads: int) -> int:
    """Return a bound on what a piece allocates where ``threads`` threads compute."""
    segments = min(threads, unrolled.segments) * SEGMENT_BYTES
    return unrolled.beside_bytes + max(unrolled.whole_bytes, segments)
