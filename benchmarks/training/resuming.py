"""What a training goes on from after it was interrupted."""

from typing import Any

import torch

from benchmarks.training.module import SkeletonModule


class Resumable:
    """A training whose next epoch depends on four things, which its ``__init__`` makes."""

    module: SkeletonModule
    _optimiser: torch.optim.Optimizer
    _schedule: torch.optim.lr_scheduler.OneCycleLR
    _generator: torch.Generator

    def state(self) -> dict[str, Any]:
        """Return all that the next epoch depends on."""
        return {
            "module": self.module.state_dict(),
            "optimiser": self._optimiser.state_dict(),
            "schedule": self._schedule.state_dict(),
            "generator": self._generator.get_state(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on from ``state``."""
        self.module.load_state_dict(state["module"])
        self._optimiser.load_state_dict(state["optimiser"])
        self._schedule.load_state_dict(state["schedule"])
        self._generator.set_state(state["generator"])
