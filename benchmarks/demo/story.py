"""What came of the demonstration, in words and numbers: no IO here.

Sizes are MB, a million bytes, as limits of cgroups are mostly written.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from benchmarks.servers.attempt import Attempt
from benchmarks.servers.contenders import MAPPED, OURS, RESIDENT

MOST_ERROR = 1e-5
"""Of answers, relative to the largest number of the answer."""
TITLES = {
    RESIDENT: "FastAPI + ONNX Runtime",
    MAPPED: "the same, weights mapped",
    OURS: "Layerstream",
}


@dataclass(frozen=True)
class Shown:
    """One contender's attempt. ``kept``: the kernel kept the limit; else it is only compared with."""

    name: str
    attempt: Attempt
    limit_bytes: int
    kept: bool = True

    @property
    def title(self) -> str:
        """Return the title of the run, as the picture shows it."""
        return TITLES[self.name] if self.attempt.limit_bytes else "the same, no limit"

    @property
    def peak(self) -> tuple[float, float, float]:
        """Return the peaks in MB: of all, of anonymous memory, of file pages."""
        keys = ("cgroup_peak_bytes", "anonymous_peak_bytes", "file_peak_bytes")
        total, anonymous, files = (self.attempt.figures[key] / 1e6 for key in keys)
        return total, anonymous, files

    @property
    def fits(self) -> bool:
        """Return whether it answered everything within the limit."""
        within = self.kept or self.attempt.figures["cgroup_peak_bytes"] <= self.limit_bytes
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
        if self.fits:
            return "answers"
        total, anonymous, _ = self.peak
        # Pages of files could be dropped, so only what is anonymous is needed for sure.
        if anonymous * 1e6 > self.limit_bytes:
            return f"needs {anonymous:,.0f} MB"
        return f"takes {total:,.0f} MB"


def table(rows: Sequence[Shown], requests: int) -> list[str]:
    """Return the lines of the table, at most 79 characters each."""
    limit = f"in {rows[0].limit_bytes / 1e6:.0f} MB"
    lines = [
        f"{'peak of memory, MB':>79}",
        _row("", limit, "answers", "s each", "anonymous", "files"),
    ]
    for row in rows:
        speed = f"{row.seconds:.2f}" if row.seconds is not None else "-"
        answers = f"{len(row.attempt.answers)} of {requests}"
        _, anonymous, files = row.peak
        sizes = f"{anonymous:,.0f}", f"{files:,.0f}"
        lines.append(_row(row.title, row.outcome, answers, speed, *sizes))
    return lines


def _row(title: str, outcome: str, answers: str, speed: str, anonymous: str, files: str) -> str:
    return f"{title:27}{outcome:16}{answers:>8}{speed:>8}{anonymous:>11}{files:>9}"


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
    ours = by_name[OURS]
    if ours.seconds is None:
        return ["Layerstream does not answer."]
    need, warm = reference.figures["anonymous_peak_bytes"] / 1e6, reference.warm_seconds()
    held = (
        f"ONNX Runtime takes {need:,.0f} MB and {median(warm):.2f} s" if warm else "no answer came"
    )
    return [
        f"Layerstream answers in {ours.seconds:.2f} s with {ours.peak[1]:,.0f} MB of its own;"
        f" the {weights / 1e6:,.0f} MB of weights stay on the disk.",
        f"With all weights in memory and no limit, {held}.",
        _about_mapping(by_name[MAPPED], ours.seconds),
    ]


def _about_mapping(mapped: Shown, our_seconds: float) -> str:
    """Return what became of letting the kernel read weights as they are touched."""
    if mapped.attempt.failure == "killed":
        return "Mapping the weights from their file is not enough: that server is killed, too."
    if mapped.seconds is None:
        return f"Mapping the weights from their file does not help: {mapped.outcome}."
    if not mapped.kept:
        return (
            f"With the weights mapped from their file it is {mapped.peak[0]:,.0f} MB, most of it pages"
            " that the kernel would drop, and read again for the next answer."
        )
    return (
        "Mapping the weights from their file, which the kernel then reads as they are touched, takes"
        f" {mapped.seconds / our_seconds:.1f} times as long."
    )


def faults(rows: Sequence[Shown], found: float | None) -> list[str]:
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
    return told
