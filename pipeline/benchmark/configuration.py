"""What a benchmark measures of a pack: architectures, each with what it may take, and their plans."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from pipeline.devices.base import Device
from pipeline.fitting.fit import fit
from pipeline.fitting.wanted import EnginePlanResult, Wanted
from pipeline.planning.found_plans import FoundPlans
from pipeline.planning.plan import Plan, PlanError
from pipeline.planning.words import sized
from pipeline.profiles.profile import Profile
from pipeline.program.program import Program
from pipeline.schedule.architectures import Architecture


@dataclass(frozen=True)
class BenchConfiguration:
    """``architecture`` under the name ``label``.

    ``limit_bytes``: of the memory for weights; None: what its equation says, or what planning finds.
    ``total_bytes``: of all memory, its request included; then parts may run on rows.
    """

    label: str
    architecture: Architecture
    limit_bytes: int | None = None
    total_bytes: int | None = None

    def adapted(self, device: Device) -> "BenchConfiguration":
        """Return it as ``device`` runs it."""
        return replace(self, architecture=device.adapt(self.architecture))

    @property
    def tuned(self) -> bool:
        """Whether it is planned on a profile."""
        return bool(self.architecture.tuned)


@dataclass(frozen=True)
class PlannedConfiguration:
    """A configuration's plan, and what a profile says of it, where there is one."""

    configuration: BenchConfiguration
    fitted: EnginePlanResult

    @property
    def plan(self) -> Plan:
        return self.fitted.plan

    def search(self) -> dict[str, Any] | None:
        """Return the curve and the point on it that was chosen, where one was searched."""
        curve = self.fitted.curve
        if not curve:
            return None
        # The largest rings are cut to the model: the plan may have less than its point says.
        chosen = next(each for each in curve if each.ring_bytes >= self.plan.ring_bytes)
        return {"curve": [asdict(each) for each in curve], "chosen": asdict(chosen)}


def plan_configuration(
    program: Program,
    configuration: BenchConfiguration,
    ring_bytes: int | None = None,
    profile: Profile | None = None,
    known: FoundPlans | None = None,
) -> PlannedConfiguration:
    """Plan ``configuration``; ``ring_bytes`` is for architectures that nothing tunes.

    Raises:
        PlanError: it does not fit in its limit or its ring, or is tuned and there is no profile.
        ProfileError: the profile lacks one of its kernels.
    """
    if configuration.tuned and profile is None:
        raise PlanError(f"{program.name}: {configuration.label} is planned on a profile")
    total = configuration.total_bytes
    wanted = Wanted(
        total_bytes=None if total is None else _for_model(program, total),
        weight_bytes=configuration.limit_bytes,
        ring_bytes=None if configuration.tuned else ring_bytes,
    )
    try:
        return PlannedConfiguration(
            configuration, fit(program, configuration.architecture, wanted, profile, known)
        )
    except PlanError as exc:
        raise PlanError(f"{configuration.label}: {exc}") from exc


def _for_model(program: Program, total_bytes: int) -> int:
    """Return what a budget leaves beside the tensors of one request, its outputs kept.

    Raises:
        PlanError: nothing.
    """
    tensor_bytes = sum(port.n_bytes for port in (*program.inputs, *program.outputs))
    if tensor_bytes >= total_bytes:
        raise PlanError(
            f"{program.name}: the tensors of one request take {sized(tensor_bytes)}, the budget is "
            f"{sized(total_bytes)}"
        )
    return total_bytes - tensor_bytes
