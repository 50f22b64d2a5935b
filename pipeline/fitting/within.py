"""The best plan within so many bytes of everything: weights, activations, scratch, sessions, tensors.

What runs on rows decides how much activations take, and with it how much is left for weights. So each
variant of the network is planned within the limit, and the fastest plan wins.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from models.packs.manifest import Manifest
from pipeline.fitting.fit import NOTHING, Fitted, fit_plan, judged
from pipeline.fitting.predict import Wanted
from pipeline.fitting.row_variants import READ_BYTES_A_SECOND, row_variants
from pipeline.planning.plan import Plan, PlanError
from pipeline.planning.rows.variants import QUICK_STEPS, Variant
from pipeline.planning.thumb import smallest_plan
from pipeline.planning.words import sized
from pipeline.profiles.profile import Profile
from pipeline.program.regions import RegionError
from pipeline.schedule.architectures import Architecture

# Of the variants that promise the least memory so many are planned to see which has it.
_TRIED = 6
# Of those that fit in a budget so many are planned in full.
_PLANNED = 4
# The promise leaves out what an arena takes beside what lives in it, and may count a binding too much.
_PROMISE = 0.97


def least_plan(
    manifest: Manifest,
    architecture: Architecture,
    profile: Profile | None,
    steps: int = QUICK_STEPS,
) -> Plan:
    """Return the plan of the least memory that is known, after so many ``steps`` of a search.

    Raises:
        ProfileError: the profile lacks a kernel.
    """
    variants = row_variants(manifest, architecture, profile, steps)
    likely = sorted(variants, key=lambda item: item.n_bytes)[:_TRIED]
    plans = _smallest(manifest, architecture, likely)
    return min(plans, key=lambda plan: plan.total_bytes)


def _smallest(
    manifest: Manifest, architecture: Architecture, variants: Sequence[Variant]
) -> Iterator[Plan]:
    """Yield the smallest plans of variants; not of one whose regions cannot run after all."""
    for variant in variants:
        try:
            yield smallest_plan(manifest, architecture, variant.regions, variant.chunk_bytes)
        except RegionError:
            continue
    # Variants count no objects: the plain network, which has the fewest steps, may take less.
    if not any(not variant.regions and variant.chunk_bytes is None for variant in variants):
        yield smallest_plan(manifest, architecture)


def fit_within(
    manifest: Manifest,
    architecture: Architecture,
    n_bytes: int,
    wanted: Wanted = NOTHING,
    profile: Profile | None = None,
) -> Fitted:
    """Return the fastest plan whose ``total_bytes`` are within the limit, or the smallest plan.

    With a delay that is ``wanted``, about the smallest that reaches it.

    Raises:
        PlanError: what is ``wanted`` cannot be, or not without a profile. ProfileError: the profile
            lacks a kernel.
    """
    if wanted.delay_seconds is not None:
        return _in_time(manifest, architecture, n_bytes, wanted, profile)
    best: Fitted | None = None
    variants = row_variants(manifest, architecture, profile, wanted.steps)
    for variant in _spread([item for item in variants if _PROMISE * item.n_bytes <= n_bytes]):
        if best is not None and variant.seconds >= _seconds(best, variant):
            break  # the following ones compute for even longer
        fitted = _fit_variant(manifest, architecture, variant, n_bytes, wanted, profile)
        if fitted is not None and (
            best is None or _seconds(fitted, variant) < _seconds(best, variant)
        ):
            best = fitted
    return best or judged(least_plan(manifest, architecture, profile, wanted.steps), profile)


def _spread(variants: Sequence[Variant]) -> list[Variant]:
    """Return the fastest of ``variants``, and of the others, which leave more for weights, a few."""
    if len(variants) <= _PLANNED:
        return list(variants)
    last = len(variants) - 1
    return [variants[last * step // (_PLANNED - 1)] for step in range(_PLANNED)]


def _in_time(
    manifest: Manifest,
    architecture: Architecture,
    n_bytes: int,
    wanted: Wanted,
    profile: Profile | None,
) -> Fitted:
    """Return the plan of the first variant, from the smallest on, that reaches the delay that is wanted.

    Raises:
        PlanError: none does.
    """
    refused: PlanError | None = None
    variants = row_variants(manifest, architecture, profile, wanted.steps)
    for variant in sorted(variants, key=lambda item: item.n_bytes):
        if wanted.delay_seconds is not None and variant.seconds > wanted.delay_seconds:
            continue
        try:
            fitted = _fit_variant(manifest, architecture, variant, n_bytes, wanted, profile)
        except PlanError as exc:
            refused = exc
            continue
        if fitted is not None and _reaches(fitted, wanted):
            return fitted
    if refused is not None:
        raise refused
    fastest = min((variant.seconds for variant in variants), default=0.0)
    raise PlanError(
        f"{manifest.name}: a delay of {1e3 * (wanted.delay_seconds or 0):.1f} ms cannot be reached within "
        f"{sized(n_bytes)}; the kernels alone take {1e3 * fastest:.1f} ms: allow more memory or a longer "
        "delay"
    )


def _reaches(fitted: Fitted, wanted: Wanted) -> bool:
    seconds, target = fitted.predicted_seconds, wanted.delay_seconds
    return seconds is None or target is None or seconds <= target


def check_fits(manifest: Manifest, plan: Plan, n_bytes: int) -> None:
    """Refuse a plan that takes more than ``n_bytes``.

    Raises:
        PlanError: it does; the message has what is required and available, and what takes most.
    """
    excess = plan.total_bytes - n_bytes
    if excess > 0:
        kind, most = max(plan.memory.items(), key=lambda item: item[1])
        raise PlanError(
            f"{manifest.name}: required {sized(plan.total_bytes)}, available "
            f"{sized(n_bytes)}, excess {sized(excess)}; most of it is {kind}: {sized(most)}"
        )


def _seconds(fitted: Fitted, variant: Variant) -> float:
    """Return the delay of a plan, as far as anybody knows."""
    if fitted.predicted_seconds is not None:
        return fitted.predicted_seconds
    return max(variant.seconds, fitted.plan.read_bytes / READ_BYTES_A_SECOND)


def _fit_variant(
    manifest: Manifest,
    architecture: Architecture,
    variant: Variant,
    room: int,
    wanted: Wanted,
    profile: Profile | None,
) -> Fitted | None:
    """Return the best plan of one variant within ``room`` bytes; None: it has none."""
    least = next(_smallest(manifest, architecture, [variant]))
    if least.choice.regions != variant.regions or least.total_bytes > room:
        return None
    weights = room - (least.total_bytes - least.weight_bytes)
    if wanted.weight_bytes is not None:
        weights = min(weights, wanted.weight_bytes)
    while weights > least.weight_bytes:
        try:
            within = replace(wanted, weight_bytes=weights, regions=variant.regions)
            fitted = fit_plan(manifest, architecture, within, profile)
        except PlanError:
            if wanted.delay_seconds is not None:
                raise
            break  # a little more than the smallest may be too little for what it chooses
        if fitted.plan.total_bytes <= room:
            return fitted
        # Larger chunks take more scratch or larger sessions: what they take is not there for weights.
        weights = min(weights, fitted.plan.weight_bytes) - (fitted.plan.total_bytes - room)
    return judged(least, profile)
