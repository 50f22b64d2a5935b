"""A library that cannot be used is named, and passed over."""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from loader.native.compiling import BuildError, LibraryError
from pipeline.devices.elementwise.building import BUILT, SOURCES, build, file_name, sources_digest
from pipeline.devices.elementwise.library import Library, find_library
from pipeline.devices.interface.native import NATIVE
from pipeline.devices.interface.rows import NativeFunction
from tests.examples import over
from tests.pipeline.devices.elementwise.chains import needs_library

needs_compiler = pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")


def refused(folder: Path) -> str:
    found = find_library(folder)
    assert isinstance(found, LibraryError)
    assert len(str(found)) < 300
    return str(found)


def test_none() -> None:
    assert refused(Path("nowhere")) == "none was built, which takes a C compiler"


def test_of_another_machine_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "elementwise-1-vax.so").touch()
    assert refused(tmp_path) == "elementwise-1-vax.so is not for here"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is no library"),
        (b"MZ" + bytes(60), "is no library"),
        (b"\x7fELF\x02\x01" + bytes(12) + b"\xf7\0" + bytes(60), "is for machine 247, this is "),
        (
            b"\x7fELF\x02\x02"
            + bytes(12)
            + (b"\0\xb7" if platform.machine() != "aarch64" else b"\0>"),
            ", this is ",
        ),
    ],
)
def test_no_library_for_this_machine(tmp_path: Path, data: bytes, reason: str) -> None:
    (tmp_path / file_name()).write_bytes(data)
    assert reason in refused(tmp_path)


@needs_library
@over("cut", [1, 1000, 20_000])
def test_cut_off(tmp_path: Path, cut: int) -> None:
    """Loading it would end the process: a disk was full, or a copy did not come to its end."""
    data = (BUILT / file_name()).read_bytes()
    (tmp_path / file_name()).write_bytes(data[:-cut])
    assert refused(tmp_path) == f"{file_name()} ends early"


@needs_library
def test_made_of_other_sources(tmp_path: Path) -> None:
    data = (BUILT / file_name()).read_bytes()
    digest = sources_digest().encode()
    assert data.count(digest) == 1
    (tmp_path / file_name()).write_bytes(data.replace(digest, b"0" * len(digest)))
    assert refused(tmp_path) == f"{file_name()} was made of other sources"


_FUNCTIONS = [entry for entry in NATIVE if isinstance(entry, NativeFunction)]


def _without_kernels(function: NativeFunction) -> str:
    """Define ``function`` in a library of these sources that has no kernels."""
    results = {"elementwise_sources": f'"{sources_digest()}"', "elementwise_processor": '""'}
    body = "" if function.returns == "void" else f"return {results.get(function.name, 0)};"
    parameters = ", ".join(f"{of} {name}" for of, name in function.parameters) or "void"
    return f"{function.returns} {function.name}({parameters}) {{ {body} }}\n"


@needs_compiler
def test_no_kernels_for_this_processor(tmp_path: Path) -> None:
    source = tmp_path / "old.c"
    source.write_text('#include "interface.h"\n' + "".join(map(_without_kernels, _FUNCTIONS)))
    command = ["cc", "-shared", "-fPIC", f"-I{SOURCES}", str(source)]
    subprocess.run([*command, "-o", str(tmp_path / file_name())], check=True)
    assert "has no kernels for this processor" in refused(tmp_path)


@needs_compiler
def test_without_what_it_should_have(tmp_path: Path) -> None:
    source = tmp_path / "other.c"
    source.write_text("int other(void) { return 1; }\n")
    command = ["cc", "-shared", "-fPIC", str(source), "-o", str(tmp_path / file_name())]
    subprocess.run(command, check=True)
    assert "cannot be loaded" in refused(tmp_path)


def test_a_compiler_that_fails_or_is_not_there(tmp_path: Path) -> None:
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\necho 'x.c:1: error: no good' >&2\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(BuildError, match=r"fails: x\.c:1: error: no good"):
        build(tmp_path / "built", str(broken), "x86_64")
    assert list((tmp_path / "built").iterdir()) == []
    with pytest.raises(BuildError, match=r"there is no C compiler \(nothing-like-it\)"):
        build(tmp_path, "nothing-like-it", "x86_64")
    with pytest.raises(BuildError, match="there are no kernels for vax"):
        build(tmp_path, machine="vax")


@pytest.mark.slow
@needs_compiler
def test_what_is_built_can_be_used(tmp_path: Path) -> None:
    built = Library(build(tmp_path))
    assert built.processor
    assert [file.name for file in tmp_path.iterdir()] == [file_name()]
