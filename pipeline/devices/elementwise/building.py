"""Compiles the kernels, when the project is installed and there is a C compiler.

Only the standard library: tools/hatch_build.py runs this file before anything is installed.
"""

import platform
import sys
import zlib
from pathlib import Path

from loader.native.compiling import BuildError, compiler_command, run_compiler

#: Of the functions and structures in kernels/interface.h.
VERSION = 11
SOURCES = Path(__file__).with_name("kernels")
BUILT = Path(__file__).with_name("built")

# No -ffast-math: NaN, infinities and subnormal numbers are as IEEE 754 has them, and nothing is contracted.
_FLAGS = ("-std=c11", "-O3", "-fPIC", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off")
_FOR_ALL = (
    *("attention_operator.c", "chain.c", "custom_operator.c", "expansion.c", "jobs.c"),
    "processors.c",
)
_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_AVX512 = ("-mavx512f", "-mavx512dq", "-mavx512vl", "-mavx512bw", "-mprefer-vector-width=512")
#: The processors that kernels are made for, and their flags, by machine.
PROCESSORS: dict[str, dict[str, tuple[str, ...]]] = {
    "x86_64": {"avx2": _AVX2, "avx512": (*_AVX2, *_AVX512)},
    "aarch64": {"neon": ()},
}
#: Processors whose quantised layers have kernels of their own beside those above.
_MORE_INTEGERS = {"x86_64": {"avx512vnni": (*_AVX2, *_AVX512, "-mavx512vnni")}, "aarch64": {}}


def file_name(machine: str | None = None) -> str:
    """Return what the library for ``machine`` (default: this one) is called."""
    return f"elementwise-{VERSION}-{machine or platform.machine()}.so"


def sources_digest() -> str:
    """Return a checksum of the kernels' sources and how they are compiled, as the reader's has it."""
    compiled = (_FLAGS, _FOR_ALL, PROCESSORS, _MORE_INTEGERS)
    checksum = zlib.crc32(repr(compiled).encode())
    for file in sorted(file for file in SOURCES.rglob("*") if file.is_file()):
        checksum = zlib.crc32(file.name.encode() + b"\0" + file.read_bytes(), checksum)
    return f"{checksum:08x}"


def build(folder: Path = BUILT, compiler: str | None = None, machine: str | None = None) -> Path:
    """Return the library for ``machine``, made in ``folder`` by ``compiler`` (default: $CC, cc, ...).

    Raises:
        BuildError: there is no compiler, or it fails, or there are no kernels for the machine.
    """
    import tempfile  # who only looks for a library builds none

    machine = machine or platform.machine()
    if machine not in PROCESSORS:
        raise BuildError(f"there are no kernels for {machine}")
    command = compiler_command(compiler)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as temporary:
            objects = [
                _compiled(command, Path(temporary), source, processor, flags)
                for source, processors in (
                    ("target.c", PROCESSORS[machine]),
                    ("integers/target.c", PROCESSORS[machine] | _MORE_INTEGERS[machine]),
                )
                for processor, flags in processors.items()
            ]
            library = Path(temporary, "library.so")
            plain = [str(SOURCES / name) for name in _FOR_ALL]
            known = f'-DELEMENTWISE_SOURCES="{sources_digest()}"'
            run_compiler(
                [command, *_FLAGS, known, "-shared", "-pthread", "-s"], [*objects, *plain], library
            )
            # Processes that have the old one open keep it.
            return library.replace(folder / file_name(machine))
    except OSError as exc:
        raise BuildError(f"{folder}: {exc.strerror or exc}") from exc


def _compiled(
    command: str, folder: Path, source: str, processor: str, flags: tuple[str, ...]
) -> str:
    result = folder / f"{source.replace('/', '-')}-{processor}.o"
    hidden = ("-fvisibility=hidden", f"-DTARGET={processor}", "-c")
    run_compiler([command, *_FLAGS, *hidden, *flags], [str(SOURCES / source)], result)
    return str(result)


if __name__ == "__main__":
    try:
        print(build())  # noqa: T201
    except BuildError as exc:
        sys.exit(f"no library of element-wise kernels: {exc}")
