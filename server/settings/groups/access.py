"""Who may ask, and who may change what is served."""

from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from server.settings.group import FILE, Default, Group


class AccessSettings(Group):
    """Who may ask, and who may change what is served."""

    title: ClassVar[str] = "Access"

    keys: Annotated[Path | None, FILE, Default("no keys are asked for")] = Field(
        None,
        description="File of keys (layerstream key add); every request but health probes wants one.",
    )
    public_metrics: bool = Field(False, description="With keys: /metrics wants none.")
    allow_admin: bool = Field(
        False, description="Without keys: let other machines load and unload models, too."
    )
