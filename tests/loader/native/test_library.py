"""A reader in C that cannot be used is named, and passed over: Python reads."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from loader.native import library
from loader.native.building import BUILT, SOURCE, build, file_name, sources_digest
from loader.native.compiling import BuildError, LibraryError
from loader.native.library import (
    ClientStruct,
    FiguresStruct,
    FlightStruct,
    JobStruct,
    ReaderLibrary,
    ReadStruct,
    SegmentStruct,
    find_reader,
)
from loader.pool.order import Urgency

NUMBERED = ("ARRIVED", "HAS_FAILED", "TIMED_OUT", "IS_CLOSED", "IN_FLIGHT", "DONE")
needs_library = pytest.mark.skipif(
    isinstance(find_reader(), LibraryError), reason="no reader in C was built"
)
needs_compiler = pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")


def refused(folder: Path) -> str:
    reason = find_reader(folder)
    assert isinstance(reason, LibraryError)
    return str(reason)


def test_none_and_another_machine_s(tmp_path: Path) -> None:
    assert refused(Path("nowhere")) == "none was built, which takes a C compiler"
    (tmp_path / "reads-1-vax.so").touch()
    assert refused(tmp_path) == "reads-1-vax.so is not for here"


@needs_library
def test_cut_off(tmp_path: Path) -> None:
    (tmp_path / file_name()).write_bytes((BUILT / file_name()).read_bytes()[:-1])
    assert refused(tmp_path) == f"{file_name()} ends early"


@needs_library
def test_of_another_source(tmp_path: Path) -> None:
    digest, data = sources_digest().encode(), (BUILT / file_name()).read_bytes()
    assert data.count(digest) == 1
    (tmp_path / file_name()).write_bytes(data.replace(digest, b"0" * len(digest)))
    assert refused(tmp_path) == f"{file_name()} was made of other sources"


@needs_compiler
def test_without_what_it_should_have(tmp_path: Path) -> None:
    source = tmp_path / "other.c"
    source.write_text("int other(void) { return 1; }\n")
    command = ["cc", "-shared", "-fPIC", str(source), "-o", str(tmp_path / file_name())]
    subprocess.run(command, check=True)
    assert "cannot be loaded" in refused(tmp_path)


def test_a_compiler_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"there is no C compiler \(nothing-like-it\)"):
        build(tmp_path, "nothing-like-it")


@needs_compiler
def test_python_has_structures_and_numbers_as_c_does(tmp_path: Path) -> None:
    structures = {
        "client": ClientStruct,
        "figures": FiguresStruct,
        "flight": FlightStruct,
        "job": JobStruct,
        "read": ReadStruct,
        "segment": SegmentStruct,
    }
    lines = [f'#include "{SOURCE}"']
    for name, structure in structures.items():
        for field in structure._fields_:
            there = getattr(structure, field[0])
            member = f"((struct {name} *)0)->{field[0]}"
            lines += [
                f'_Static_assert(offsetof(struct {name}, {field[0]}) == {there.offset}, "");',
                f'_Static_assert(sizeof {member} == {there.size}, "");',
            ]
    numbered = {name: getattr(library, name) for name in NUMBERED}
    lines += [f'_Static_assert({name} == {value}, "");' for name, value in numbered.items()]
    lines += [f'_Static_assert({urgency.name} == {urgency.value}, "");' for urgency in Urgency]
    for name in ("segment", "read", "figures"):  # of arrays, or filled by C
        n_bytes = ctypes.sizeof(structures[name])
        lines.append(f'_Static_assert(sizeof(struct {name}) == {n_bytes}, "");')
    source = tmp_path / "layout.c"
    source.write_text("\n".join(lines))
    subprocess.run(["cc", "-std=c11", "-fsyntax-only", str(source)], check=True)


@needs_compiler
def test_what_is_built_can_be_used_and_gives_no_warning(tmp_path: Path) -> None:
    assert ReaderLibrary(build(tmp_path)).path.parent == tmp_path
    command = ["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", str(SOURCE)]
    subprocess.run(command, check=True)
