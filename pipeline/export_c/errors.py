"""What can be wrong with an export to C."""

from models.errors import ModelError


class ExportError(ModelError):
    """The pack cannot become C, or the files cannot be written; the message names node and reason."""
