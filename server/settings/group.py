"""What the groups of settings are made of: their base, and what is said of a field beside its type."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


class Group(BaseModel):
    """Settings that belong together; ``title``: over them in ``serve --help`` and in the table."""

    # Commands that have some of these options look at their words, and make none of them.
    model_config = ConfigDict(defer_build=True, validate_default=True)

    title: ClassVar[str]


@dataclass(frozen=True)
class Default:
    """What an absent value means, in words."""

    words: str


@dataclass(frozen=True)
class Takes:
    """What a value is, in a word, where its type does not say."""

    word: str


FILE = Takes("FILE")


def split_names(text: str) -> tuple[str, ...]:
    """Return the names in ``text``, which commas separate."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _split(value: object) -> object:
    return split_names(value) if isinstance(value, str) else value


#: A year: what waits for longer waits for ever, and timers end somewhere.
Seconds = Annotated[float, Field(gt=0, le=366 * 86_400)]
#: Names separated by commas.
Names = Annotated[tuple[str, ...], BeforeValidator(_split)]
