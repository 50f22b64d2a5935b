"""Short kernels run as one where there is memory for it: nothing else of a plan changes.

What is predicted and bounded are kernels one by one, as a profile has them: a little more than it takes.
"""

from dataclasses import replace

from models.packs.manifest import Manifest
from pipeline.fitting.wanted import Fitted
from pipeline.planning.joining.joined import joined


def with_joined(manifest: Manifest, fitted: Fitted, most_bytes: int | None = None) -> Fitted:
    """Return ``fitted`` with joined kernels that take at most ``most_bytes`` more; None: all there are."""
    return replace(fitted, plan=joined(manifest, fitted.plan, most_bytes))
