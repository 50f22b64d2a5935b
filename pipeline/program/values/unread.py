"""Values that nobody reads once the piece that makes them has ended."""

from models.packs.manifest import Manifest
from pipeline.program.values.shared_memory import roots


def unread_values(manifest: Manifest) -> frozenset[int]:
    """Return the values that only exist inside pieces, though these have a place for them.

    What lies in the same memory as one that is read counts as read.
    """
    root = [root for root, _ in roots(manifest)]
    read = {root[port.value] for port in (*manifest.inputs, *manifest.outputs)}
    for piece in manifest.pieces:
        read |= {root[item.index] for item in piece.inputs if item.kind == "value"}
    return frozenset(value for value in range(len(manifest.values)) if root[value] not in read)
