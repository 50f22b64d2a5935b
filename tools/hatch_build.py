"""The build backend's hook: makes the native library where there is a C compiler, and goes on where not."""

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parents[1]


class ElementwiseHook(BuildHookInterface):
    """Compiles pipeline/devices/elementwise/kernels; a wheel takes what was made for this machine."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the library to what is built; ``version`` is "editable" where the sources stay in place."""
        sys.path.insert(0, str(ROOT))
        from pipeline.devices.elementwise.building import BuildError, build

        try:
            library = build()
        except BuildError as exc:
            self.app.display_warning(f"no library of element-wise kernels: {exc}")
        else:
            # Git ignores it: what git ignores is left out otherwise.
            build_data["artifacts"].append("/" + library.relative_to(ROOT).as_posix())
        finally:
            sys.path.remove(str(ROOT))
