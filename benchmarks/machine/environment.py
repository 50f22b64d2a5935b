"""A private copy of the running environment: interpreter, standard library, packages, our own code.

The kernel charges a page of a file to the process that touches it first. A server that is measured while
pip, an editor or an earlier run has its libraries in the page cache gets them free, which no fresh machine
does. Nothing else uses the copy, and before each measurement its files leave the page cache.

What is not private: the C library, which every process of any machine has mapped, so that it cannot leave
memory, and a few small tables (locales), 2.6 MB in all.
Inodes and directory entries, about a kilobyte for each file opened, were made with the copy and are not
charged either.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from benchmarks.machine import page_cache

_PROJECT = Path(__file__).resolve().parents[2]
_OURS = ("models", "loader", "pipeline", "papers", "server", "cli", "benchmarks")
_NOT_NEEDED = (
    "site-packages",
    "dist-packages",
    "test",
    "idlelib",
    "tkinter",
    "turtledemo",
    "ensurepip",
)
_PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
_CHECK = "import encodings, ssl, sys; sys.exit(0 if sys.base_prefix == sys.argv[1] else 1)"
# What servers import, so that the system's libraries below it are mapped; then a line for each file mapped.
_PROBE = """
import benchmarks.children.peer_server, onnxruntime, server.serve
for line in open("/proc/self/maps"):
    print(*line.split(None, 5)[5:], end="")
"""
_C_LIBRARY = re.compile(r"(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|util))\.so")


@dataclass(frozen=True)
class Environment:
    """The copy in ``folder``."""

    folder: Path

    @property
    def python(self) -> Path:
        """Return the interpreter of the copy."""
        return self.folder / "venv/bin" / _PYTHON

    @property
    def libraries(self) -> Path:
        """Return the folder of the system's libraries in the copy."""
        return self.folder / "libraries"

    def private(self, command: Sequence[str]) -> list[str]:
        """Return ``command`` run by the copy: its first word, our interpreter, is replaced.

        Modules come from the copy whatever folder it is started in.
        """
        assert command[0] == sys.executable
        libraries = f"LD_LIBRARY_PATH={self.libraries}"
        return ["env", libraries, "PYTHONPATH=", str(self.python), "-P", *command[1:]]

    def run(self, *arguments: str) -> str:
        """Run the copy's interpreter; return what it prints.

        Raises:
            CalledProcessError: it failed.
        """
        command = self.private([sys.executable, *arguments])
        return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout

    def drop(self, *models: Path) -> int:
        """Take the copy and ``models`` (files, folders) out of the page cache; return the bytes left."""
        return page_cache.drop([*self._files, *page_cache.files_below(*models)])

    @cached_property
    def _files(self) -> list[Path]:
        return page_cache.files_below(self.folder)


def copy_environment(folder: Path, *distributions: str) -> Environment:
    """Copy what layerstream and ``distributions`` (those installed) need into ``folder`` on a disk.

    Where the interpreter does not run from another place, the copy uses the original one with its standard
    library.
    """
    environment = Environment(folder)
    base = _copy_interpreter(folder / "base")
    packages = folder / "venv/lib" / _PYTHON / "site-packages"
    packages.mkdir(parents=True)
    environment.python.parent.mkdir()
    environment.python.symlink_to(base / _PYTHON)
    (folder / "venv/pyvenv.cfg").write_text(
        f"home = {base}\ninclude-system-site-packages = false\n"
    )
    for found in needed(["layerstream", *distributions]):
        _copy_distribution(found, packages)
    for name in _OURS:
        shutil.copytree(_PROJECT / name, folder / "project" / name)
    (packages / "project.pth").write_text(f"{folder / 'project'}\n")
    # Modules without bytecode yet would be compiled, and written, while we measure.
    # That of a server has no docstrings (-OO); the standard library's was copied as it is.
    levels = ("-m", "compileall", "-q", "-o", "0", "-o", "2")
    environment.run(*levels, str(folder / "project"), str(packages))
    environment.run(*levels, "-x", "/lib2to3/", str(folder / "base/lib" / _PYTHON))
    _copy_libraries(environment)
    return environment


def needed(names: Iterable[str]) -> list[Distribution]:
    """Return the installed distributions among ``names`` and all that they require, extras left out."""
    found: dict[str, Distribution] = {}
    waiting = list(names)
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in found:
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            continue
        for line in found[name].requires or []:
            required = re.match(r"[\w.-]+", line)
            if required and not re.search(r";.*\bextra\b", line):
                waiting.append(required[0])
    return list(found.values())


def _copy_distribution(found: Distribution, packages: Path) -> None:
    for file in found.files or []:
        source = Path(str(found.locate_file(file)))
        # Scripts lie outside; a .pth is how an editable installation finds the checkout.
        if ".." in file.parts or source.suffix == ".pth" or not source.is_file():
            continue
        target = packages / file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)


def _copy_libraries(environment: Environment) -> None:
    """Copy the system's libraries that servers map, under every name that they have in their folder."""
    environment.libraries.mkdir()
    paths = {Path(line) for line in environment.run("-c", _PROBE).splitlines() if ".so" in line}
    for path in paths:
        if path.is_relative_to(environment.folder) or _C_LIBRARY.match(path.name):
            continue
        for name in path.parent.glob(f"{path.name.partition('.so')[0]}*"):
            if name.resolve() == path.resolve():
                shutil.copy2(path, environment.libraries / name.name)


def _copy_interpreter(base: Path) -> Path:
    """Copy interpreter and standard library to ``base``; return the folder of the one that runs."""
    original = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    prefix, library = Path(sys.base_prefix), Path(os.__file__).parent
    python = base / "bin" / _PYTHON
    python.parent.mkdir(parents=True)
    shutil.copy2(original, python)
    skip = shutil.ignore_patterns(*_NOT_NEEDED, "config-*")
    target = base / library.relative_to(prefix)
    shutil.copytree(library, target, ignore=skip, ignore_dangling_symlinks=True)
    for shared in (prefix / "lib").glob(f"lib{_PYTHON}*.so*"):
        shutil.copy2(shared, base / "lib" / shared.name)
    check = subprocess.run(
        [str(python), "-I", "-c", _CHECK, str(base)], capture_output=True, check=False
    )
    if check.returncode == 0:
        return python.parent
    python.unlink()
    return original.parent
