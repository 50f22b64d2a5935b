"""Plans without a profile: what fits in so many bytes, by rules that held in every measurement."""

from models.packs.manifest import Manifest
from pipeline.planning.make import READ_BYTES, READS_IN_RING, make_plan
from pipeline.planning.plan import Choice, Plan
from pipeline.schedule.architectures import Architecture

# More ring than this gained nothing: three of the largest reads.
USEFUL_RING_BYTES = READS_IN_RING * READ_BYTES
_WHOLE = 1 << 62


def smallest_plan(manifest: Manifest, architecture: Architecture) -> Plan:
    """Return the plan with the least memory for weights that can run the model."""
    return make_plan(
        manifest, architecture, choice=Choice(chunk_bytes=manifest.largest_chunk_bytes)
    )


def rule_of_thumb(manifest: Manifest, architecture: Architecture, weight_bytes: int) -> Plan:
    """Return a plan with up to ``weight_bytes`` for weights, or the smallest one.

    The ring comes first, up to what is useful; ``auto`` keeps the last layers in what is left, where
    weights are large and quick to compute with.
    """
    smallest = smallest_plan(manifest, architecture)
    if architecture.resident:
        return smallest
    room = (weight_bytes - smallest.resident_bytes) // (2 if architecture.copies else 1)
    if architecture.tuned != "auto":
        return _in_ring(manifest, architecture, min(room, USEFUL_RING_BYTES), smallest)
    streamed = [i for i, span in enumerate(manifest.spans) if not span.resident]
    if room >= sum(manifest.spans[i].length for i in streamed):
        return make_plan(
            manifest, architecture, choice=Choice(chunk_bytes=_WHOLE, resident=tuple(streamed))
        )
    ring = min(room, USEFUL_RING_BYTES)
    return _in_ring(manifest, architecture, ring, smallest, _last(manifest, streamed, room - ring))


def _in_ring(
    manifest: Manifest,
    architecture: Architecture,
    ring_bytes: int,
    smallest: Plan,
    kept: tuple[int, ...] = (),
) -> Plan:
    if ring_bytes <= smallest.ring_bytes:
        return smallest
    chunk = max(ring_bytes // READS_IN_RING, manifest.largest_chunk_bytes)
    choice = Choice(ring_bytes // 4096 * 4096, chunk, resident=kept, ahead=architecture.ahead)
    return make_plan(manifest, architecture, choice=choice)


def _last(manifest: Manifest, streamed: list[int], n_bytes: int) -> tuple[int, ...]:
    """Return the last of the ``streamed`` spans that together fit in ``n_bytes``."""
    kept = []
    for index in reversed(streamed):
        n_bytes -= manifest.spans[index].length
        if n_bytes < 0:
            break
        kept.append(index)
    return tuple(reversed(kept))
