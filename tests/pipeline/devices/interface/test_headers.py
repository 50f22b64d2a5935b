"""The tables of the interface, their headers, and what compilers say of both."""

import ctypes
import shutil
import subprocess

import pytest

from pipeline.devices.cuda.call import HEADERS
from pipeline.devices.elementwise.building import SOURCES
from pipeline.devices.elementwise.programs import NativeStep
from pipeline.devices.interface.cuda import packed
from pipeline.devices.interface.native import CTYPES, NATIVE, OPERATOR_OF, OPERATORS
from pipeline.devices.interface.rows import Constants, CTypes, Members, Structure
from tests.examples import over
from tools.c_headers import headers

needs_compiler = pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
needs_cpp = pytest.mark.skipif(not shutil.which("g++"), reason="no C++ compiler")
_INTERFACE = SOURCES / "interface.h"


def errors_of(text: str, language: str = "c") -> str:
    """What the compiler says of ``text``; empty: nothing."""
    command = ["cc", "-Wall", "-Werror", "-fsyntax-only", f"-I{SOURCES}", f"-x{language}", "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    return done.stderr


def test_headers_are_as_the_tables_write_them() -> None:
    """If this fails: ``python -m tools.c_headers``, then build the library."""
    for file, text in headers().items():
        assert file.read_text("ascii") == text, file.name


@needs_compiler
@over(
    "right, wrong, reason",
    [
        ("", "", ""),
        ("channels, filters;", "filters, channels;", "layer.channels"),
        ("double cost;", "float cost;", "task.failed"),
        ("struct tensor tensors[MAX_TENSORS]", "struct tensor tensors[13]", "size of chain"),
        ("MAX_CONCATENATED = 8", "MAX_CONCATENATED = 9", "joined.given"),
    ],
)
def test_a_structure_that_is_another_in_c_does_not_compile(
    right: str, wrong: str, reason: str
) -> None:
    text = _INTERFACE.read_text("ascii")
    assert right in text
    errors = errors_of(text.replace(right, wrong, 1))
    assert reason in errors
    assert bool(reason) == bool(errors)


@needs_cpp
@over(
    "right, wrong, reason",
    [
        ("", "", ""),
        ("out_height, out_width, groups", "out_width, out_height, groups", "out_height"),
        ("MAX_RANK = 6", "MAX_RANK = 7", "size of CopyLayout"),
    ],
)
def test_a_structure_that_is_another_in_cuda_does_not_compile(
    right: str, wrong: str, reason: str
) -> None:
    text = (HEADERS / "interface.cuh").read_text("ascii").replace("#pragma once", "")
    assert right in text
    errors = errors_of(text.replace(right, wrong, 1), "c++")
    assert reason in errors
    assert bool(reason) == bool(errors)


def test_members_of_a_structure_lie_in_its_order() -> None:
    layout = packed("CopyLayout", target=(5, 6), source=(3, -4), sizes=(1, 2), rank=2)
    assert layout == (2, 1, 2, 0, 0, 0, 0, 3, -4, 0, 0, 0, 0, 5, 6, 0, 0, 0, 0)
    with pytest.raises(AssertionError, match="CopyLayout"):
        packed("CopyLayout", rank=2, sizes=(1, 2), source=(3, 4))
    with pytest.raises(RuntimeError, match="invalid index"):
        packed("CopyLayout", rank=7, sizes=(1,) * 7, source=(1,) * 7, target=(1,) * 7)


@needs_compiler
def test_a_kernel_in_c_and_one_in_the_table_are_the_same() -> None:
    listed = "".join(f"kernel {name}_here; " for name in OPERATORS)
    includes = '#include "chain.h"\n#define NAMED(name) name##_here\n'
    table = "#define OF(name) NAMED(name),\nkernel *const all[N_OPERATORS] = {OPERATORS(OF)};\n"
    assert errors_of(f"{includes}{listed}\n{table}") == ""
    without = listed.replace("kernel mish_here;", "")
    assert "mish_here" in errors_of(f"{includes}{without}\n{table}")


def test_each_kernel_is_of_some_kind() -> None:
    assert {*OPERATOR_OF.values()} == {*range(len(OPERATORS))}
    assert len({*OPERATORS}) == len(OPERATORS)


def test_steps_have_the_members_of_their_structure() -> None:
    (step,) = (entry for entry in NATIVE if isinstance(entry, Structure) and entry.name == "step")
    assert tuple(name for _, name in step.fields()) == NativeStep._fields


def test_types_of_a_table() -> None:
    types = CTypes(
        (
            Constants("", {"N": 3}),
            Structure("", "inner", (Members("const float *", "a", ""), Members("int", "b c", ""))),
            Structure("", "outer", (Members("struct inner[N]", "of", ""),)),
        )
    )
    inner, outer = types.structures["inner"], types.structures["outer"]
    assert ctypes.sizeof(outer) == 3 * ctypes.sizeof(inner) == 48
    with pytest.raises(KeyError, match="short"):
        CTypes((Structure("", "other", (Members("short", "a", ""),)),))


def test_functions_that_a_library_lacks_are_named() -> None:
    with pytest.raises(AttributeError, match="elementwise_sources"):
        CTYPES.declare(ctypes.CDLL(None))
