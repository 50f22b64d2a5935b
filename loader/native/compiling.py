"""Libraries of C: compiled when the project is installed, and what a file of one is.

Only the standard library: tools/hatch_build.py runs this before anything is installed.
"""

import io
import os
import platform
import struct
from pathlib import Path

_COMPILERS = ("cc", "gcc", "clang")
_TIMEOUT_SECONDS = 300


class BuildError(Exception):
    """There is no library, and why, in one line."""


class LibraryError(Exception):
    """The library cannot be used, and why, in one line."""


def compiler_command(name: str | None) -> str:
    """Return the path of the compiler ``name``; None: of $CC, or one that is installed.

    Raises:
        BuildError: there is none.
    """
    import shutil

    names = (name,) if name else (os.environ.get("CC") or "cc", *_COMPILERS)
    compiler = next(filter(None, map(shutil.which, names)), None)
    if compiler is None:
        raise BuildError(f"there is no C compiler ({', '.join(dict.fromkeys(names))})")
    return compiler


def run_compiler(command: list[str], files: list[str], result: Path) -> None:
    """Run ``command`` on ``files`` to write ``result``.

    Raises:
        BuildError: it fails.
    """
    import subprocess  # who only looks for a library runs no compiler

    try:
        subprocess.run(  # noqa: S603  the compiler of the system
            [*command, *files, "-o", str(result)],
            check=True,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_SECONDS,
        )
    except subprocess.TimeoutExpired as exc:
        raise BuildError(f"{command[0]}: not done after {_TIMEOUT_SECONDS} s") from exc
    except subprocess.CalledProcessError as exc:
        lines = [line.strip() for line in exc.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line] or lines or [f"exit {exc.returncode}"]
        raise BuildError(f"{command[0]} fails: {errors[0][:200]}") from exc


# A library that is there may be of another machine, or end early.

_ELF = b"\x7fELF"
# Of a header: byte 5 says the order of bytes (1: least first), bytes 18 and 19 the machine.
_MACHINES = {62: "x86_64", 183: "aarch64", 3: "i386", 40: "arm", 243: "riscv64"}
_HEADER_BYTES = 64
# Of it, what identifies a library and its machine.
_LEAST_BYTES = 20


def check_machine(path: Path) -> None:
    """Look whether the file ``path`` is a whole library for this machine.

    Raises:
        LibraryError: it is not.
    """
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER_BYTES)
            n_bytes = file.seek(0, io.SEEK_END)
    except OSError as exc:
        raise LibraryError(f"{path.name}: {exc.strerror}") from exc
    if len(header) < _LEAST_BYTES or not header.startswith(_ELF):
        raise LibraryError(f"{path.name} is no library")
    (machine_id,) = struct.unpack("<H" if header[5] == 1 else ">H", header[18:20])
    machine = _MACHINES.get(machine_id, f"machine {machine_id}")
    if machine != platform.machine():
        raise LibraryError(f"{path.name} is for {machine}, this is {platform.machine()}")
    if not _is_whole(header, n_bytes):
        raise LibraryError(f"{path.name} ends early")


def _is_whole(header: bytes, n_bytes: int) -> bool:
    """Return whether a file of 64 bits has its table of sections, which linkers write last.

    Loading one without its end would kill the process: it is mapped, and touched (SIGBUS).
    """
    if len(header) < _HEADER_BYTES:
        return False
    (start,) = struct.unpack("<Q", header[40:48])
    size, count = struct.unpack("<HH", header[58:62])
    return 0 < int(start) <= n_bytes - int(size) * int(count)


def missing(folder: Path, name: str) -> LibraryError:
    """Return why there is no library ``name-*.so`` for here in ``folder``."""
    others = ", ".join(sorted(item.name for item in folder.glob(f"{name}-*.so"))[:3])
    return LibraryError(
        f"{others} is not for here" if others else "none was built, which takes a C compiler"
    )
