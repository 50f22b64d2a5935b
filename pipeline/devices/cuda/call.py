"""Kernels as data: their sources, each as one text, and launches of them before any touches a GPU.

Lowering makes them, the device binds them to addresses, tests run them on a build for the host.
"""

import ctypes
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from numpy.typing import NDArray

# The sources of the kernels, each as one text.
#
# What it includes is written out, so that a cache by content sees every change.

FOLDER = Path(__file__).parent / "kernels"
HEADERS = FOLDER / "headers"

#: What every build of them needs: NVRTC's options. Which products and sums are one operation is for the
#: kernels to say: chosen by the compiler, bits would differ between tiles.
#: CuPy adds -ftz=true to whatever it compiles: sums that small are zero.
OPTIONS = ("--std=c++17", "--fmad=false", "-ftz=true")

_INCLUDE = re.compile(r'^#include "([\w.]+)"\s*$', re.MULTILINE)


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


# Kernel launches as data: what a piece becomes before any of it touches a GPU.

Space = Literal["input", "output", "inner", "constant"]


@dataclass(frozen=True)
class DevicePointer:
    """``offset`` bytes into input or output ``index`` of a piece, into constant ``index``, or into scratch.

    ``inner`` memory is scratch that lives while the piece runs; its index is 0.
    """

    space: Space
    index: int = 0
    offset: int = 0

    def moved(self, n_bytes: int) -> "DevicePointer":
        """Return the pointer to ``n_bytes`` behind this one."""
        return DevicePointer(self.space, self.index, self.offset + n_bytes)


#: A pointer (None: null), an int32, a float32, or a structure of int32.
Argument = DevicePointer | None | int | float | tuple[int, ...]


@dataclass(frozen=True)
class KernelLaunch:
    """One launch of ``function`` of kernels/``module``.cu: blocks, threads of a block, arguments."""

    module: str
    function: str
    grid: tuple[int, int, int]
    block: int
    arguments: tuple[Argument, ...]


@dataclass(frozen=True)
class LaunchProgram:
    """A piece as launches in order, with the scratch and the constants (C-contiguous) they need."""

    calls: tuple[KernelLaunch, ...]
    inner_bytes: int
    constants: tuple[NDArray[Any], ...] = ()


Resolve = Callable[[DevicePointer], int]


class Arguments:
    """The arguments of one launch as the driver takes them: an array of pointers to values."""

    def __init__(self, arguments: Sequence[Argument], resolve: Resolve) -> None:
        self._values = [_value(argument, resolve) for argument in arguments]
        self._pointers = (ctypes.c_void_p * len(self._values))(
            *(ctypes.addressof(value) for value in self._values)
        )

    @property
    def values(self) -> list[Any]:
        """The arguments as numbers, addresses among them."""
        return [value.value if hasattr(value, "value") else tuple(value) for value in self._values]

    @property
    def address(self) -> int:
        """Address of the array; valid as long as this object lives."""
        return ctypes.addressof(self._pointers)


def _value(argument: Argument, resolve: Resolve) -> Any:  # ctypes has no public base class
    if argument is None:
        return ctypes.c_uint64(0)
    if isinstance(argument, DevicePointer):
        return ctypes.c_uint64(resolve(argument))
    if isinstance(argument, tuple):
        return (ctypes.c_int32 * len(argument))(*argument)
    if isinstance(argument, float):
        return ctypes.c_float(argument)
    return ctypes.c_int32(argument)
