"""How much room requests need in their pool, beside what is kept of it: pure figures."""

#: What takes no more may take it from all that is free, and at once.
SMALL_BYTES = 128 << 10
# Kept for that: others leave so much free, or an eighth of a small pool.
_KEPT_BYTES = 256 << 10
_KEPT_SHARE = 8
# Of a pool, so much is left for others beside the largest usual request: one in so many.
_OTHERS_SHARE = 8


def kept_bytes(capacity_bytes: int) -> int:
    """Return what is kept of a pool for what takes next to nothing."""
    return min(_KEPT_BYTES, capacity_bytes // _KEPT_SHARE)


def capacity_for(n_bytes: int) -> int:
    """Return the smallest pool in which one request can hold ``n_bytes``."""
    return n_bytes + min(_KEPT_BYTES, n_bytes // (_KEPT_SHARE - 1) + 1)


def room_beside_others(n_bytes: int) -> int:
    """Return what requests must have room for so that one has ``n_bytes`` beside small ones of others."""
    return -(-n_bytes * _OTHERS_SHARE // (_OTHERS_SHARE - 1))
