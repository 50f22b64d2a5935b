"""The pipeline architectures of seed 003 as data: the schedule has rules, these choose among them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Architecture:
    """How a sweep brings weights to kernels.

    ``stages`` in the order data flows; ``resident``: all weights stay in memory, so that no stage but
    the last has work; ``in_flight``: how many operations of all stages together may run at once
    (None: as many as the constraints allow).
    """

    name: str
    stages: tuple[str, ...]
    resident: bool = False
    in_flight: int | None = None
    summary: str = ""


ARCHITECTURES: dict[str, Architecture] = {
    architecture.name: architecture
    for architecture in (
        Architecture(
            "pre",
            ("read", "kernel"),
            resident=True,
            summary="preloading (Section II-E, Eq. 1-2): all weights in memory",
        ),
        Architecture(
            "seq",
            ("read", "kernel"),
            in_flight=1,
            summary="sequential (Section V-A, Eq. 4-5): read, then compute, one at a time",
        ),
        Architecture(
            "2s",
            ("read", "kernel"),
            summary="two-stage pipeline (Section VI, Eq. 9): kernels use what the disk wrote",
        ),
    )
}
