"""How long a body may be, and which setting says so."""

from typing import NamedTuple


class BodyLimit(NamedTuple):
    """At most ``n_bytes``, as the setting called ``setting`` says."""

    n_bytes: int
    setting: str = "max_body"

    @property
    def message(self) -> str:
        """What whoever sends more is told."""
        return f"the body is over the limit of {self.n_bytes} bytes (setting {self.setting})"
