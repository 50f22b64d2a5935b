"""Kernels for the host: each .cu compiled by g++ with shim.h into a library, loaded by ctypes."""

import ctypes
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pipeline.devices.cuda
from pipeline.devices.cuda.call import Argument, Arguments, DevicePointer, KernelLaunch, Resolve

KERNELS = Path(pipeline.devices.cuda.__file__).parent / "kernels"
HEADERS = KERNELS / "headers"
MODULES = sorted(path.stem for path in KERNELS.glob("*.cu"))
_HOST = Path(__file__).parent
_GXX = "g++"
# No contraction: a product and a sum are one fma only where the kernel says so.
_OPTIONS = (
    *("-std=c++17", "-O2", "-march=native", "-ffp-contract=off", "-fno-exceptions", "-fno-rtti"),
    *("-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared", "-fvisibility=hidden"),
    # A number at no multiple of its size, which x86 reads and a GPU does not.
    *("-fsanitize=alignment", "-fsanitize-undefined-trap-on-error"),
    *("-Wall", "-Wno-unknown-pragmas", "-Wno-unused-function"),
)
_KERNEL = re.compile(
    r'extern\s+"C"\s+__global__\s+void\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?(\w+)\s*\('
)


class LaunchError(RuntimeError):
    """A launch that would go wrong on a GPU: other arguments, missed barriers, foreign memory."""


def compiler_missing() -> bool:
    return shutil.which(_GXX) is None


def cache_folder() -> Path:
    """Return a folder outside the repository that only this user can write to.

    Raises:
        PermissionError: another user made it.
    """
    folder = Path(tempfile.gettempdir()) / f"layerstream-kernels-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise PermissionError(f"{folder} can be written by others")
    return folder


def sources(*folders: Path) -> list[Path]:
    """Return all CUDA and C++ files of ``folders`` in a fixed order."""
    return sorted(
        path
        for folder in folders
        for path in folder.iterdir()
        if path.suffix in {".cu", ".cuh", ".h"}
    )


def digest(*parts: str | bytes) -> str:
    """Return a name for whatever these parts make."""
    found = hashlib.sha256()
    for part in parts:
        found.update(part.encode() if isinstance(part, str) else part)
        found.update(b"\0")
    return found.hexdigest()[:32]


def kernel_names(source: Path) -> list[str]:
    """Return the kernels of a .cu file, those that macros make too."""
    text = _run(_GXX, "-std=c++17", "-E", "-P", "-x", "c++", "-DHOST_BUILD", f"-I{HEADERS}", source)
    return _KERNEL.findall(text)


def build(source: Path) -> Path:
    """Compile one .cu file, unless its content was compiled before, and return the library.

    Raises:
        RuntimeError: g++ reports errors.
    """
    used = [path for path in sources(KERNELS, HEADERS, _HOST) if path.suffix != ".cu"]
    content = [path.read_bytes() for path in (source, *used)]
    library = cache_folder() / f"{source.stem}-{digest(*_OPTIONS, platform.node(), *content)}.so"
    if library.exists():
        return library
    launchers = "".join(f"HOST_LAUNCHER({name})\n" for name in kernel_names(source))
    text = f'#include "shim.h"\n#include "{source}"\n#include "launch.h"\n{launchers}'
    with tempfile.TemporaryDirectory() as folder:
        program, made = Path(folder) / "program.cpp", Path(folder) / "made.so"
        program.write_text(text, encoding="utf-8")
        _run(_GXX, *_OPTIONS, f"-I{_HOST}", f"-I{HEADERS}", "-o", made, program)
        # Another process may build the same: the last one replaces equal by equal.
        near = library.with_suffix(f".{os.getpid()}")
        shutil.copy(made, near)
        near.replace(library)
    return library


def _run(*command: str | Path) -> str:
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout


class HostKernels:
    """Runs launches on the host; addresses are addresses of this process."""

    def __init__(self, folder: Path = KERNELS) -> None:
        self._folder = folder
        self._library = cache(self._load)
        self._function = cache(self._find)

    def launch(self, call: KernelLaunch, resolve: Resolve) -> None:
        """Run all blocks of ``call``.

        Raises:
            LaunchError: the kernel takes other arguments, threads miss a barrier, or one touches what
                it must not.
            RuntimeError: the module does not compile.
        """
        run, expected = self._function(call.module, call.function)
        given = "".join(_kind(argument) for argument in call.arguments)
        if given != expected:
            raise LaunchError(f"{call.function} takes {expected}, not {given}")
        arguments = Arguments(call.arguments, resolve)
        problem = run((ctypes.c_uint * 3)(*call.grid), call.block, arguments.address)
        if problem is not None:
            raise LaunchError(f"{call.function}: {problem.decode()}")

    def _load(self, module: str) -> ctypes.CDLL:
        return ctypes.CDLL(str(build(self._folder / f"{module}.cu")))

    def _find(self, module: str, function: str) -> tuple[Callable[..., bytes | None], str]:
        library = self._library(module)
        signature = getattr(library, f"signature_{function}")
        signature.restype = ctypes.c_char_p
        run = getattr(library, f"launch_{function}")
        run.restype = ctypes.c_char_p
        run.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
        return run, signature().decode()


def _kind(argument: Argument) -> str:
    """Return the letter that launch.h has for a parameter of this kind."""
    if argument is None or isinstance(argument, DevicePointer):
        return "p"
    if isinstance(argument, tuple):
        return f"s{len(argument)};"
    return "f" if isinstance(argument, float) else "i"
