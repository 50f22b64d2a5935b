"""What a benchmark measures of a pack: architectures, each with what it may take, and their plans."""

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from models.packs.manifest import Manifest
from pipeline.devices.base import Device
from pipeline.fitting.predict import Prediction, Wanted, find_plan, predict
from pipeline.planning.found_plans import Point
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Plan, PlanError
from pipeline.planning.thumb import rule_of_thumb
from pipeline.profiles.profile import Profile
from pipeline.schedule.architectures import Architecture


@dataclass(frozen=True)
class Configuration:
    """``architecture`` under the name ``label``.

    ``limit_bytes``: of the memory for weights; None: what its equation says, or what planning finds.
    """

    label: str
    architecture: Architecture
    limit_bytes: int | None = None

    def adapted(self, device: Device) -> "Configuration":
        """Return it as ``device`` runs it."""
        return replace(self, architecture=device.adapt(self.architecture))

    @property
    def tuned(self) -> bool:
        """Whether it is planned on a profile."""
        return bool(self.architecture.tuned)


@dataclass(frozen=True)
class Planned:
    """A configuration's plan, and what a profile says of it, where there is one.

    ``reasons``: in words, why the plan is as it is. ``curve``: of the search for its ring (Section V-D).
    """

    configuration: Configuration
    plan: Plan
    prediction: Prediction | None = field(default=None, repr=False)
    reasons: tuple[str, ...] = ()
    curve: tuple[Point, ...] = field(default=(), repr=False)

    def search(self) -> dict[str, Any] | None:
        """Return the curve and the point on it that was chosen, where one was searched."""
        if not self.curve:
            return None
        # The largest rings are cut to the model: the plan may have less than its point says.
        chosen = next(each for each in self.curve if each.ring_bytes >= self.plan.ring_bytes)
        return {"curve": [asdict(each) for each in self.curve], "chosen": asdict(chosen)}


def plan_configuration(
    manifest: Manifest,
    configuration: Configuration,
    ring_bytes: int | None = None,
    profile: Profile | None = None,
) -> Planned:
    """Plan ``configuration``; ``ring_bytes`` is for architectures that nothing tunes.

    Raises:
        PlanError: it does not fit in its limit or its ring, or is tuned and there is no profile.
        ProfileError: the profile lacks one of its kernels.
    """
    ring = None if configuration.tuned else ring_bytes
    if profile is not None:
        wanted = Wanted(ring, configuration.limit_bytes)
        found = find_plan(manifest, configuration.architecture, wanted, profile)
        prediction = predict(found.plan, profile)
        planned = Planned(configuration, found.plan, prediction, found.reasons, found.curve)
    elif configuration.tuned:
        raise PlanError(f"{manifest.name}: {configuration.label} is planned on a profile")
    else:
        planned = Planned(configuration, _unprofiled(manifest, configuration, ring))
    _check(manifest, planned)
    return planned


def _unprofiled(manifest: Manifest, configuration: Configuration, ring_bytes: int | None) -> Plan:
    architecture, limit = configuration.architecture, configuration.limit_bytes
    if limit is None or ring_bytes is not None:
        return make_plan(manifest, architecture, ring_bytes)
    return rule_of_thumb(manifest, architecture, limit)


def _check(manifest: Manifest, planned: Planned) -> None:
    limit, needed = planned.configuration.limit_bytes, planned.plan.weight_bytes
    if limit is not None and needed > limit:
        raise PlanError(
            f"{manifest.name}: {planned.configuration.label} needs {needed} bytes for weights, "
            f"more than the limit of {limit}"
        )
