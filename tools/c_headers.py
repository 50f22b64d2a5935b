"""Writes the headers of C and CUDA from the tables: ``python -m tools.c_headers``.

They are committed: whoever installs compiles them without Python. A test compares them with the tables.
"""

import ctypes
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from pipeline.devices.interface.cuda import CUDA
from pipeline.devices.interface.native import NATIVE
from pipeline.devices.interface.rows import (
    Constants,
    CTypes,
    Entry,
    Enumeration,
    KernelList,
    Members,
    NativeFunction,
    Structure,
    Texts,
)

_DEVICES = Path(__file__).resolve().parents[1] / "pipeline/devices"
_WIDTH = 108
_TOGETHER = "\xa0"  # a space where no line ends
_HEAD = "Written by `python -m tools.c_headers` from {table}: change it there."


def headers() -> Mapping[Path, str]:
    """Return the text of each header by its file."""
    native = _DEVICES / "elementwise/kernels/interface.h"
    cuda = _DEVICES / "cuda/kernels/headers/interface.cuh"
    return {
        native: _in_c("pipeline/devices/interface/native.py", NATIVE),
        cuda: _in_cuda("pipeline/devices/interface/cuda.py", CUDA),
    }


# Where ctypes has each member, for the compiler to compare.
_ASSERTIONS = """\
#define AT(type, member, at) _Static_assert(offsetof(struct type, member) == at, #type "." #member);
#define SIZE(type, bytes) _Static_assert(sizeof(struct type) == bytes, "size of " #type);
"""
# NVRTC has no offsetof. Its structures are of int alone: their sizes say it, and g++ in tests.
_ASSERTIONS_CUDA = """\
#ifdef __CUDACC_RTC__
#define AT(type, member, at)
#else
#define AT(type, member, at) static_assert(__builtin_offsetof(type, member) == at, #type "." #member);
#endif
#define SIZE(type, bytes) static_assert(sizeof(type) == bytes, "size of " #type);
"""


def _in_c(table: str, entries: Sequence[Entry]) -> str:
    """Return a header in C11."""
    head = _comment(_HEAD.format(table=table))
    guard = ["#ifndef ELEMENTWISE_INTERFACE_H", "#define ELEMENTWISE_INTERFACE_H", ""]
    includes = ["#include <stddef.h>", "#include <stdint.h>", ""]
    of_entries = _entries(entries, CTypes(entries), "enum {name}")
    return "\n".join([*head, *guard, *includes, _ASSERTIONS, *of_entries, "#endif"]) + "\n"


def _in_cuda(table: str, entries: Sequence[Entry]) -> str:
    """Return a header in CUDA's C++."""
    head = _comment(_HEAD.format(table=table))
    of_entries = _entries(entries, CTypes(entries), "enum class {name}")
    return "\n".join([*head, "#pragma once", "", _ASSERTIONS_CUDA, *of_entries]).rstrip("\n") + "\n"


def _entries(entries: Sequence[Entry], types: CTypes, enumeration: str) -> Iterator[str]:
    """Yield the lines of ``entries``; ``enumeration``: what one begins with in the language."""
    for entry in entries:
        yield from _comment(entry.comment)
        match entry:
            case Constants(_, constants):
                yield from _list("enum", (f"{name} = {n}" for name, n in constants.items()))
            case Texts(_, texts):
                yield from (f'#define {name} "{text}"' for name, text in texts.items())
            case KernelList(_, name, total, kernels):
                rows = _wrapped(f"EACH({kernel})" for kernel in kernels)
                yield " \\\n".join((f"#define {name}(EACH)", *rows))
                yield f"enum {{ {total} = {len(kernels)} }};"
            case Enumeration(_, name, names, total):
                yield from _list(enumeration.format(name=name), filter(None, (*names, total)))
            case Structure():
                yield f"struct {entry.name} {{"
                yield from map(_member, entry.members)
                yield "};"
                yield from _assertions(entry, types.structures[entry.name])
            case NativeFunction(_, returns, name, parameters):
                listed = ", ".join(_declared(of, parameter) for of, parameter in parameters)
                yield f"{_declared(returns, name)}({listed or 'void'});"
        yield ""


def _wrapped(items: Iterable[str], indent: str = "    ") -> list[str]:
    """Return lines of ``items``, none of which is divided."""
    text = " ".join(item.replace(" ", _TOGETHER) for item in items)
    lines = textwrap.wrap(text, _WIDTH, initial_indent=indent, subsequent_indent=indent)
    return [line.replace(_TOGETHER, " ") for line in lines]


def _comment(text: str) -> Iterator[str]:
    yield from (f"// {line}" for line in textwrap.wrap(text, _WIDTH - len("// ")))


def _list(begin: str, values: Iterable[str]) -> Iterator[str]:
    yield f"{begin} {{"
    yield from _wrapped(f"{value}," for value in values)
    yield "};"


def _declared(of: str, name: str) -> str:
    """Return a declaration of ``name`` (several, with commas) of the type ``of``."""
    return f"{of}{name}" if of.endswith("*") else f"{of} {name}"


def _member(row: Members) -> str:
    plain, _, length = row.type.removesuffix("]").partition("[")
    star = "*" if plain.endswith("*") else ""
    names = (f"{star}{name}{f'[{length}]' if length else ''}" for name in row.names.split())
    text = f"    {plain.removesuffix('*').rstrip()} {', '.join(names)};"
    return f"{text}  // {row.comment}" if row.comment else text


def _assertions(entry: Structure, structure: type[ctypes.Structure]) -> list[str]:
    """Return that C has the size and the offsets that ctypes has here."""
    offsets = ((name, getattr(structure, name).offset) for _, name in entry.fields())
    size = f"SIZE({entry.name}, {ctypes.sizeof(structure)})"
    return _wrapped(
        [size, *(f"AT({entry.name}, {name}, {offset})" for name, offset in offsets)], ""
    )


if __name__ == "__main__":
    for file, text in headers().items():
        file.write_text(text, encoding="ascii")
