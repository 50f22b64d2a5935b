"""Compiles the reader in C, when the project is installed and there is a C compiler.

Only the standard library: tools/hatch_build.py runs this file before anything is installed.
"""

import platform
import sys
import zlib
from pathlib import Path

from loader.native.compiling import BuildError, compiler_command, run_compiler

#: Of the functions and structures in reads.c.
VERSION = 1
SOURCE = Path(__file__).with_name("reads.c")
BUILT = Path(__file__).with_name("built")

_FLAGS = ("-std=c11", "-O2", "-fPIC", "-shared", "-pthread", "-s")


def file_name(machine: str | None = None) -> str:
    """Return what the library for ``machine`` (default: this one) is called."""
    return f"reads-{VERSION}-{machine or platform.machine()}.so"


def sources_digest() -> str:
    """Return a checksum of the source and how it is compiled, 8 characters.

    A library that was built of another source has another. Each process that reads asks for it:
    hashlib would map OpenSSL, 3 MB.
    """
    return f"{zlib.crc32(repr(_FLAGS).encode() + SOURCE.read_bytes()):08x}"


def build(folder: Path = BUILT, compiler: str | None = None, machine: str | None = None) -> Path:
    """Return the library for ``machine``, made in ``folder`` by ``compiler`` (default: $CC, cc, ...).

    Raises:
        BuildError: there is no compiler, or it fails.
    """
    import tempfile  # who only looks for a library builds none

    command = compiler_command(compiler)
    digest = f'-DREADS_SOURCES="{sources_digest()}"'
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as temporary:
            library = Path(temporary, "library.so")
            run_compiler([command, *_FLAGS, digest], [str(SOURCE)], library)
            # Processes that have the old one open keep it.
            return library.replace(folder / file_name(machine))
    except OSError as exc:
        raise BuildError(f"{folder}: {exc.strerror or exc}") from exc


if __name__ == "__main__":
    try:
        print(build())  # noqa: T201
    except BuildError as exc:
        sys.exit(f"no library of the reader in C: {exc}")
