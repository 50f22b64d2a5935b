"""A plan at once: what a server begins with, while the best one is searched for."""

from dataclasses import replace

from models.packs.manifest import Manifest
from pipeline.fitting.judge import judged
from pipeline.fitting.wanted import Fitted, Wanted
from pipeline.fitting.within import Within
from pipeline.planning.make import of_weights
from pipeline.planning.plan import Choice, Plan
from pipeline.profiles.profile import Profile
from pipeline.schedule.architectures import Architecture

_REASON = "a first plan, by rules of thumb: the best one is searched for"


def by_thumb(
    manifest: Manifest,
    architecture: Architecture,
    wanted: Wanted,
    least: Plan,
    profile: Profile | None = None,
) -> Fitted:
    """Return a plan within ``wanted.total_bytes`` that is found without a search.

    The whole network streams if that fits, else what is on rows is what ``least``, its smallest plan, has
    there. Memory that is left keeps weights. ``profile`` judges it, and decides nothing. Where nothing else
    fits, or the architecture is planned on a profile alone, it is ``least``.

    Raises:
        ProfileError: the profile lacks a kernel.
    """
    plan = _streaming(manifest, architecture, wanted, least) or least
    return replace(judged(plan, profile, (_REASON,)), by_thumb=True)


def _streaming(
    manifest: Manifest, architecture: Architecture, wanted: Wanted, least: Plan
) -> Plan | None:
    if architecture.tuned == "search":
        return None
    within = Within(manifest, of_weights(architecture, manifest), wanted, None)
    for choice in (Choice(), least.choice):
        found = within.streaming(choice)
        if found is not None:
            return found.plan
    return None
