"""``python -m pipeline.devices.elementwise``: one line where there are no native kernels, and why."""

import sys

from loader.native.compiling import LibraryError
from pipeline.devices.elementwise.library import find_library

if isinstance(found := find_library(), LibraryError):
    print(f"layerstream: no native kernels for operators on elements: {found}", file=sys.stderr)  # noqa: T201
