"""What no plan can beat: the least delay that a memory for weights and a disk's speed allow."""

from collections.abc import Sequence


def least_seconds(
    kernels: Sequence[float], weights: Sequence[int], memory_bytes: int, bytes_per_second: float
) -> float:
    """Return seconds that a sweep takes at least, however its ring and residents share ``memory_bytes``.

    ``kernels[i]`` seconds of kernel i, which needs ``weights[i]`` bytes. All memory may be full when the
    sweep begins. Where kernels q to p need more than fits, the rest is read while they run, and what
    follows p comes after it: docs/research/auto.md, "What memory is worth".
    """
    least = total = sum(kernels)
    before = 0.0  # of the kernels in front of q
    for q, seconds in enumerate(kernels):
        unread, after = -memory_bytes, total - before
        for kernel, n_bytes in zip(kernels[q:], weights[q:], strict=True):
            unread, after = unread + n_bytes, after - kernel
            least = max(least, before + unread / bytes_per_second + after)
        before += seconds
    return least
