"""What one look at a machine comes to."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

#: fail: it does not serve so. warn: it serves, slower or less surely than it could.
Verdict = Literal["ok", "warn", "fail"]
_ORDER: tuple[Verdict, ...] = ("ok", "warn", "fail")


@dataclass(frozen=True)
class Finding:
    """``reason``: what was found; ``remedy``: what to do about it, empty where all is well."""

    check: str
    verdict: Verdict
    reason: str
    remedy: str = ""


def worst(findings: list[Finding]) -> Verdict:
    """Return the worst verdict."""
    return max((finding.verdict for finding in findings), key=_ORDER.index, default="ok")


def text(path: Path) -> str:
    """Return what a file of the kernel's says in one line; empty: it is not there, or not to be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").replace("\0", "").strip()
    except OSError:
        return ""


def number(path: Path) -> int | None:
    """Return the number in a file of the kernel's, None: there is none."""
    try:
        return int(text(path))
    except ValueError:
        return None
