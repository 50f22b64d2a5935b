"""Faults that are put into the sources of the project, to see whether the simulation finds them.

A fault is a text of a module that is replaced by another; ``planted/NAME.json`` has lists of them, with
what became of a search (``tests.simulation.finding``).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent / "planted"


@dataclass(frozen=True)
class Planted:
    """``changes``: module, a text that it has once, and what stands there instead."""

    name: str
    about: str
    changes: tuple[tuple[str, str, str], ...]


def read(path: Path) -> list[Planted]:
    """Return the faults in the file ``path``."""
    entries: list[dict[str, Any]] = json.loads(path.read_text())
    return [
        Planted(
            entry["name"],
            entry["about"],
            tuple(
                (module, "\n".join(before), "\n".join(after))
                for module, before, after in entry["changes"]
            ),
        )
        for entry in entries
    ]


def named(name: str) -> Planted:
    """Return the fault of that name, of any file."""
    faults = {fault.name: fault for path in sorted(FOLDER.glob("*.json")) for fault in read(path)}
    return faults[name]


def sources(planted: Sequence[Planted]) -> dict[str, str]:
    """Return the texts of the modules that ``planted`` changes, by name.

    Raises:
        ValueError: a module has a text not once, so that the fault has to be written anew.
    """
    texts: dict[str, str] = {}
    for fault in planted:
        for module, before, after in fault.changes:
            text = texts.get(module) or _text(module)
            if text.count(before) != 1:
                raise ValueError(
                    f"{fault.name}: {module} has {text.count(before)} times {before!r}"
                )
            texts[module] = text.replace(before, after)
    return texts


def _text(module: str) -> str:
    return (ROOT / (module.replace(".", "/") + ".py")).read_text(encoding="utf-8")
