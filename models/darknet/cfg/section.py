"""A section of a cfg file, or one that a definition in the zoo made."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Section:
    """``kind`` without brackets; options as texts; lines count from 1, 0 where there is no file."""

    kind: str
    options: Mapping[str, str]
    line: int = 0
    option_lines: Mapping[str, int] = field(default_factory=dict)
