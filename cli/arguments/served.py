"""Options of commands that are settings of ``serve``, too: the same flags, the same words.

Apart from the others: a command that has none of them does not wait until the settings are there.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from server.settings.per_model import MOST_THREADS
from server.settings.table import setting


def _of(name: str) -> Any:
    """Return the option for what is a setting of ``serve``, too: the same flag, the same words."""
    item = setting(name)
    return typer.Option(item.flag, help=item.help, metavar=item.value or None, show_default=False)


Memory = Annotated[str | None, _of("memory")]
Budget = Annotated[str | None, _of("budget")]
Host = Annotated[str, _of("host")]
Port = Annotated[int, _of("port")]
MaxConnections = Annotated[int, _of("max_connections")]
Keys = Annotated[Path | None, _of("keys")]
TlsCertificate = Annotated[Path | None, _of("tls_certificate")]
TlsKey = Annotated[Path | None, _of("tls_key")]
RequestMemory = Annotated[str | None, _of("request_memory")]
ActivationsOption = Annotated[Literal["auto", "own", "shared"], _of("activations")]
Names = Annotated[list[str] | None, _of("models")]
ArchitectureName = Annotated[str, _of("architecture")]
DeviceName = Annotated[str, _of("device")]
Recompile = Annotated[bool, _of("recompile")]
MemoryKind = Annotated[str | None, _of("memory_kind")]
PrecisionName = Annotated[str, _of("precision")]
Verify = Annotated[Literal["first", "always"], _of("verify")]
Threads = Annotated[
    int | None,
    typer.Option(min=1, max=MOST_THREADS, metavar="NUMBER", help=setting("threads").help),
]
