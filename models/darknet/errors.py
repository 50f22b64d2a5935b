"""What can be wrong with a cfg or with the weights that belong to it."""

from models.errors import ModelError


class DarknetError(ModelError):
    """A cfg or .weights file is not one of Darknet's, or uses what is not supported here."""


def short(text: str) -> str:
    """Return ``text`` of a file as messages quote it."""
    return text if len(text) <= 40 else text[:40] + "..."
