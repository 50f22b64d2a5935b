"""Plans without a profile: what fits in so many bytes, by rules that held in every measurement."""

from models.packs.choice import chunk_sizes
from models.packs.manifest import Manifest
from models.packs.same_spans import SameSpans
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice, Plan
from pipeline.planning.spaced_sizes import spaced
from pipeline.planning.streaming import READ_BYTES, READS_IN_RING
from pipeline.program.regions import Region
from pipeline.schedule.architectures import Architecture

# More ring than this gained nothing: three of the largest reads.
USEFUL_RING_BYTES = READS_IN_RING * READ_BYTES
_WHOLE = 1 << 62
_RATIO = 1.5


def smallest_plan(
    manifest: Manifest,
    architecture: Architecture,
    regions: tuple[Region, ...] = (),
    chunk_bytes: int | None = None,
) -> Plan:
    """Return the plan of the least memory that can run the model, ``regions`` on rows.

    Of the sizes of chunks: small ones stream through a small ring, but each takes a binding. With
    ``chunk_bytes`` that is decided.
    """
    if chunk_bytes is not None:
        return make_plan(
            manifest, architecture, choice=Choice(chunk_bytes=chunk_bytes, regions=regions)
        )
    finest = manifest.largest_chunk_bytes
    sizes = spaced([finest, *sorted(chunk_sizes(manifest))], _RATIO)
    chosen = sizes if architecture.tuned == "auto" else [finest]
    plans = (
        make_plan(manifest, architecture, choice=Choice(chunk_bytes=size, regions=regions))
        for size in chosen
    )
    return min(plans, key=lambda plan: plan.total_bytes)


def rule_of_thumb(
    manifest: Manifest,
    architecture: Architecture,
    weight_bytes: int,
    regions: tuple[Region, ...] = (),
) -> Plan:
    """Return a plan with up to ``weight_bytes`` for weights, or the smallest one.

    The ring comes first, up to what is useful; ``auto`` keeps the last layers in what is left, where
    weights are large and quick to compute with.
    """
    smallest = smallest_plan(manifest, architecture, regions)
    if architecture.resident:
        return smallest
    ratio = 1 + smallest.staging_bytes / max(smallest.ring_bytes, 1)
    room = int((weight_bytes - smallest.resident_bytes) / ratio)
    if architecture.tuned != "auto":
        return _in_ring(manifest, architecture, min(room, USEFUL_RING_BYTES), smallest)
    streamed = [i for i, span in enumerate(manifest.spans) if not span.resident]
    same = SameSpans(manifest)
    if room >= same.n_bytes(streamed):
        choice = Choice(chunk_bytes=_WHOLE, resident=tuple(streamed), regions=regions)
        return make_plan(manifest, architecture, choice=choice)
    ring = min(room, USEFUL_RING_BYTES)
    return _in_ring(manifest, architecture, ring, smallest, _last(same, streamed, room - ring))


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
    choice = Choice(
        ring_bytes // 4096 * 4096,
        chunk,
        resident=kept,
        ahead=architecture.ahead,
        regions=smallest.choice.regions,
    )
    return make_plan(manifest, architecture, choice=choice)


def _last(same: SameSpans, streamed: list[int], n_bytes: int) -> tuple[int, ...]:
    """Return the last of the ``streamed`` spans that fit in ``n_bytes``, and all that are the same."""
    kept = set[int]()
    for index in reversed(streamed):
        if index not in kept:
            n_bytes -= same.n_bytes([index])
            if n_bytes < 0:
                break
            kept.update(same.with_same([index]))
    return tuple(sorted(kept))
