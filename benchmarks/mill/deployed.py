"""The service as deploy/ runs it: its configuration, and MemoryMax for any budget."""

import re
from pathlib import Path

from models.sizes import parse_size

_FOLDER = Path(__file__).parents[2] / "deploy"
CONFIGURATION = _FOLDER / "layerstream.toml"


def beside_the_budget(unit: str) -> int:
    """Return the bytes by which MemoryMax of a systemd ``unit`` is above the budget it sets.

    Raises:
        ValueError: it does not set both.
    """
    budget = re.search(r"^Environment=LAYERSTREAM_BUDGET=(\S+)$", unit, re.MULTILINE)
    limit = re.search(r"^MemoryMax=(\d+)M$", unit, re.MULTILINE)
    if budget is None or limit is None:
        raise ValueError("the unit does not set both LAYERSTREAM_BUDGET and MemoryMax in M")
    return parse_size(f"{limit[1]}MiB") - parse_size(budget[1])


def memory_max(budget: int) -> int:
    """Return MemoryMax for ``budget`` bytes: as far above it as in the unit."""
    return budget + beside_the_budget((_FOLDER / "layerstream.service").read_text("utf-8"))
