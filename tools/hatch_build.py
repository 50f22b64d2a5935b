"""The build backend's hook: makes the libraries in C where there is a compiler, and goes on where not."""

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parents[1]


class LibrariesHook(BuildHookInterface):
    """Compiles the libraries in C; a wheel takes what was made for this machine."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the libraries to what is built; ``version`` is "editable" where the sources stay in place."""
        sys.path.insert(0, str(ROOT))
        from loader.native import building as reads
        from loader.native.compiling import BuildError
        from pipeline.devices.elementwise import building as elementwise

        try:
            for name, build in (
                ("the reader in C", reads.build),
                ("element-wise kernels", elementwise.build),
            ):
                try:
                    library = build()
                except BuildError as exc:
                    self.app.display_warning(f"no library of {name}: {exc}")
                else:
                    # Git ignores it: what git ignores is left out otherwise.
                    build_data["artifacts"].append("/" + library.relative_to(ROOT).as_posix())
        finally:
            sys.path.remove(str(ROOT))
