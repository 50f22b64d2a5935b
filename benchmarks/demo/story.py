"""What came of the demonstration, in words and numbers: no IO here.

Sizes are MB, a million bytes, as limits of cgroups are mostly written.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from benchmarks.attempt import Attempt
from benchmarks.contenders import MAPPED, OURS, RESIDENT

MOST_ERROR = 1e-5
"""Of answers, relative to the largest number of the answer."""
TITLES = {
    RESIDENT: "FastAPI + ONNX Runtime",
    MAPPED: "same, weights mapped",
    OURS: "Layerstream",
}


@dataclass(frozen=True)
class Shown:
    """One contender's attempt. ``kept``: the kernel kept the limit; else it is only compared."""

    name: str
    attempt: Attempt
    limit_bytes: int
    kept: bool

    @property
    def title(self) -> str:
        """Return who it is."""
        return TITLES[self.name]

    @property
    def peak(self) -> tuple[float, float, float]:
        """Return the peaks in MB: of all, of anonymous memory, of file pages."""
        keys = ("cgroup_peak_bytes", "anonymous_peak_bytes", "file_peak_bytes")
        total, anonymous, files = (self.attempt.figures[key] / 1e6 for key in keys)
        return total, anonymous, files

    @property
    def fits(self) -> bool:
        """Return whether it answered everything within the limit."""
        within = self.kept or self.peak[0] * 1e6 <= self.limit_bytes
        return not self.attempt.failure and within

    @property
    def seconds(self) -> float | None:
        """Return the median of its answers but the first, or of the only one."""
        seconds = self.attempt.warm_seconds() or self.attempt.seconds
        return median(seconds) if seconds else None

    @property
    def outcome(self) -> str:
        """Return in a few words whether it works within the limit."""
        if self.attempt.failure == "killed":
            return "killed"
        if self.attempt.failure == "too slow":
            return "too slow"
        if self.attempt.failure:
            return "failed"
        return "answers" if self.fits else f"needs {self.peak[0]:,.0f} MB"


def table(rows: Sequence[Shown], limit_bytes: int) -> list[str]:
    """Return the lines of the table, at most 79 characters each."""
    head = f"in {limit_bytes / 1e6:.0f} MB"
    lines = [f"{'':24}{head:>15}{'s/answer':>11}{'anonymous MB':>15}{'files MB':>11}"]
    for row in rows:
        speed = f"{row.seconds:.2f}" if row.seconds is not None else "-"
        _, anonymous, files = row.peak
        lines.append(f"{row.title:24}{row.outcome:>15}{speed:>11}{anonymous:15,.0f}{files:11,.0f}")
    return lines


def error(ours: Attempt, reference: Attempt) -> float | None:
    """Return the largest difference of our answers, relative to the largest number; None: no answer."""
    pairs = list(zip(ours.answers, reference.answers, strict=False))
    if not pairs or len(reference.answers) < len(ours.answers):
        return None
    return max(
        float(np.abs(one - other).max()) / (float(np.abs(other).max()) or 1.0)
        for one, other in pairs
    )


def conclusion(rows: Sequence[Shown], weights: int, reference: Attempt) -> list[str]:
    """Return the sentences below the table, as they are true of ``rows``."""
    by_name = {row.name: row for row in rows}
    ours, mapped = by_name[OURS], by_name[MAPPED]
    need = reference.figures["anonymous_peak_bytes"] / 1e6
    said = [
        f"Layerstream answers in {ours.seconds:.2f} s with {ours.peak[1]:,.0f} MB of its own memory:"
        if ours.seconds is not None
        else "Layerstream does not answer:",
        f"the {weights / 1e6:,.0f} MB of weights stay on the disk and stream through a small buffer",
        f"while it computes. With the weights in memory, ONNX Runtime takes {need:,.0f} MB",
        f"and {median(reference.warm_seconds()):.2f} s an answer on this machine."
        if reference.warm_seconds()
        else "and does not get to an answer on this machine.",
    ]
    if mapped.fits and mapped.seconds and ours.seconds:
        said.append(
            f"Letting the kernel page mapped weights in takes {mapped.seconds / ours.seconds:.1f} times"
            " as long."
        )
    return said


def faults(rows: Sequence[Shown], found: float | None, label: str) -> list[str]:
    """Return in words what does not hold of the claim."""
    by_name = {row.name: row for row in rows}
    told = []
    if not by_name[OURS].fits:
        told.append(f"Layerstream {by_name[OURS].outcome}: {by_name[OURS].attempt.failure[-300:]}")
    if by_name[RESIDENT].fits:
        told.append("the weights fit in the limit, so this shows nothing")
    if found is None:
        told.append(
            "ONNX Runtime with the weights in memory did not answer, so nothing is compared"
        )
    elif found > MOST_ERROR:
        told.append(f"answers differ by {found:.1e}")
    if label != "cat":
        told.append(f"the photograph of a cat is called {label!r}")
    return told
