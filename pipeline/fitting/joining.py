"""Short kernels run as one where there is memory for it: nothing else of a plan changes."""

from dataclasses import replace

from pipeline.fitting.judge import judged
from pipeline.fitting.wanted import Fitted
from pipeline.planning.joining.joined import joined
from pipeline.profiles.profile import Profile
from pipeline.program.program import Program


def with_joined(
    program: Program, fitted: Fitted, profile: Profile | None, most_bytes: int | None = None
) -> Fitted:
    """Return ``fitted`` with joined kernels that take at most ``most_bytes`` more; None: all there are.

    With what ``profile`` says of it then.
    """
    plan = joined(program, fitted.plan, most_bytes)
    return replace(judged(plan, profile, fitted.reasons, fitted.curve), thorough=fitted.thorough)
