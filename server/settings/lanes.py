"""Which numbers of lanes contradict others."""

from collections.abc import Mapping

from server.errors import shown
from server.settings.per_model import of_model

#: Of one sweep: each has an arena.
MOST_LANES = 64


def check_lanes(lanes: Mapping[str, int], workers: Mapping[str, int]) -> None:
    """Check that no model has several lanes and several workers.

    Raises:
        ValueError: one has, by name.
    """
    for model in {**lanes, **workers}:
        if of_model(lanes, model, 1) > 1 and of_model(workers, model, 1) > 1:
            raise ValueError(f"{shown(model)} has workers, whose sweeps carry one request each")


def check_preferred(preferred: Mapping[str, int], lanes: Mapping[str, int]) -> None:
    """Check that sweeps can carry as many requests as are preferred.

    Raises:
        ValueError: those of a model cannot.
    """
    for model in {**preferred, **lanes}:
        most = of_model(lanes, model, 1)
        wanted = of_model(preferred, model, most)
        if wanted > most:
            raise ValueError(f"{wanted} of {shown(model)}, whose sweeps carry {most} (lanes)")
