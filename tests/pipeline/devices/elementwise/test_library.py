"""A library that cannot be used is named, and passed over."""

import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from pipeline.devices.elementwise.building import (
    BUILT,
    SOURCES,
    BuildError,
    build,
    file_name,
    sources_digest,
)
from pipeline.devices.elementwise.library import LIMITS, Library, LibraryError, find_library
from pipeline.devices.integers import tasks
from pipeline.devices.integers.native_layers import QuantisedLayers
from tests.examples import over
from tests.pipeline.devices.elementwise.chains import library, needs_library

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


def _limits_in_c(limits: Mapping[str, int]) -> str:
    lines = ", ".join(f'{{"{name}", {value}}}' for name, value in limits.items())
    return (
        "static const struct { const char *name; unsigned long value; } limits[] = "
        f"{{{lines}, {{0, 0}}}};\nconst void *elementwise_limits(void) {{ return limits; }}\n"
    )


ALL_LIMITS = {**LIMITS, **tasks.LIMITS}


@needs_library
@over("name", list(ALL_LIMITS))
def test_a_limit_that_python_has_otherwise(name: str) -> None:
    there = ALL_LIMITS[name]
    with pytest.raises(LibraryError, match=f"so: {name} is {there}, expected {there + 1}$"):
        library().check_limits({**ALL_LIMITS, name: there + 1})


@needs_library
def test_the_library_has_the_limits_of_python() -> None:
    assert library().limits == ALL_LIMITS
    with pytest.raises(LibraryError, match=r"so: MOST_NOTHING is None, expected 1$"):
        library().check_limits({"MOST_NOTHING": 1})


@needs_library
def test_limits_are_compared_where_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tasks.LIMITS, "MOST_JOINED", 9)
    with pytest.raises(LibraryError, match="MOST_JOINED is 8, expected 9"):
        QuantisedLayers(library(), 1)
    monkeypatch.setattr("pipeline.devices.elementwise.library.LIMITS", {"MOST_AXES": 7})
    with pytest.raises(LibraryError, match="MOST_AXES is 8, expected 7"):
        Library(BUILT / file_name())


def test_each_limit_of_the_kernels_is_compared() -> None:
    """But those that bound work inside of one kernel, and refuse nothing."""
    inside = {"MOST_GROUP", "MOST_RUNS"}
    sources = [path.read_text() for path in SOURCES.rglob("*.[ch]")]
    declared = {
        name
        for text in sources
        for block in re.findall(r"enum(?: \w+)? \{(.*?)\}", text, re.DOTALL)
        for name in re.findall(r"\b(MOST_\w+|WORTH_\w+|N_OPERATORS|N_PLANES)\b", block)
    }
    assert {"MOST_TENSORS", "MOST_JOINED"} < declared
    assert declared - inside <= ALL_LIMITS.keys()


@needs_compiler
def test_no_kernels_for_this_processor(tmp_path: Path) -> None:
    source = tmp_path / "old.c"
    source.write_text(
        'const char *elementwise_processor(void) { return ""; }\n'
        f'const char *elementwise_sources(void) {{ return "{sources_digest()}"; }}\n'
        "int elementwise_choose(const char *name) { return !name; }\n"
        "void elementwise_run(const void *chain) { (void)chain; }\n"
        "void elementwise_expand(void) {}\nvoid elementwise_hand_over(void) {}\n"
        "void integers_fit(void) {}\nvoid integers_run(void) {}\n"
        "void integers_hand_over(void) {}\nvoid integers_average(void) {}\n"
        "void integers_use_dot_products(void) {}\n"
        f"{_limits_in_c(ALL_LIMITS)}"
    )
    command = ["cc", "-shared", "-fPIC", str(source), "-o", str(tmp_path / file_name())]
    subprocess.run(command, check=True)
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
