"""Long operations report what they are doing; the caller decides whether it is shown, and where."""

from typing import Protocol


class Progress(Protocol):
    """Called with the name of each step as it begins, and again with what it is at in ``detail``."""

    def __call__(self, step: str, detail: str = "") -> None: ...


def silent(step: str, detail: str = "") -> None:
    """Show nothing."""
