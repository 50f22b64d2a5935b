"""The sources of the kernels, each as one text.

What it includes is written out, so that a cache by content sees every change.
"""

import re
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent / "kernels"
HEADERS = FOLDER / "headers"

#: What every build of them needs: NVRTC's options. Which products and sums are one operation is for the
#: kernels to say: chosen by the compiler, bits would differ between tiles.
#: CuPy adds -ftz=true to whatever it compiles: sums that small are zero.
OPTIONS = ("--std=c++17", "--fmad=false", "-ftz=true")

_INCLUDE = re.compile(r'^#include "([\w.]+)"\s*$', re.MULTILINE)


def modules() -> list[str]:
    """Return the names of all modules."""
    return sorted(path.stem for path in FOLDER.glob("*.cu"))


def enumerators(file: str, name: str) -> tuple[str, ...]:
    """Return the names of enumeration ``name`` in ``file``: a kernel gets one of them by its place."""
    found = re.search(
        rf"enum class {name} {{(.*?)}}", (FOLDER / file).read_text("utf-8"), re.DOTALL
    )
    assert found is not None, name
    return tuple(re.findall(r"\w+", re.sub("//.*", "", found[1])))


@cache
def source(module: str) -> str:
    """Return the source of ``module`` with each header once, where it is first included.

    Raises:
        FileNotFoundError: there is no such module.
    """
    included: set[str] = set()

    def text(name: str) -> str:
        if name in included:
            return ""
        included.add(name)
        folder = HEADERS if name.endswith(".cuh") else FOLDER
        body = (folder / name).read_text("utf-8").replace("#pragma once\n", "")
        return _INCLUDE.sub(lambda match: text(match[1]), body)

    return text(f"{module}.cu")
