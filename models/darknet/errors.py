"""What can be wrong with a cfg or with the weights that belong to it."""

from models.errors import ModelError


class DarknetError(ModelError):
    """A cfg or .weights file is not one of Darknet's, or uses what is not supported here."""
