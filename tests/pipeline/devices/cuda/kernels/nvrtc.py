"""NVRTC without a GPU: .cu files to machine code, and what the assembler says of each kernel."""

import ctypes
import importlib.util
import json
import re
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.devices.cuda.call import OPTIONS, source
from tests.pipeline.devices.cuda.host.build import cache_folder, digest

_LIBRARY = "libnvrtc.so.12"
#: Of what NVRTC says of every program for Volta, which is where this server lives.
_DEPRECATED = "nvrtc: warning: Architectures prior to"
_ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True)
class Usage:
    """What one thread of a kernel uses of registers and local memory, and a block of shared memory."""

    registers: int
    stack_bytes: int
    spill_bytes: int
    shared_bytes: int


def library_path() -> Path | None:
    """Return where the wheel nvidia-cuda-nvrtc-cu12 put NVRTC; None without the wheel."""
    if importlib.util.find_spec("nvidia") is None:
        return None
    found = importlib.util.find_spec("nvidia.cuda_nvrtc")
    folders = found.submodule_search_locations if found else None
    paths = [Path(folder) / "lib" / _LIBRARY for folder in folders or ()]
    return next((path for path in paths if path.exists()), None)


def usage(module: str, architecture: str) -> dict[str, Usage]:
    """Compile kernels/``module``.cu for ``architecture`` ("sm_72"); return what each kernel uses.

    Raises:
        RuntimeError: NVRTC reports errors or warnings.
    """
    name = digest(str(version()), *OPTIONS, source(module))
    known = cache_folder() / f"{module}-{architecture}-{name}.json"
    if not known.exists():
        log = compile_log(module, architecture)
        known.write_text(json.dumps({name: asdict(used) for name, used in _read(log).items()}))
    return {name: Usage(**used) for name, used in json.loads(known.read_text()).items()}


def version() -> tuple[int, int]:
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check(_nvrtc().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    return major.value, minor.value


def compile_log(module: str, architecture: str) -> str:
    """Return the assembler's words on a compilation that gave machine code.

    Raises:
        RuntimeError: there are errors or warnings.
    """
    nvrtc, program = _nvrtc(), ctypes.c_void_p()
    _check(
        nvrtc.nvrtcCreateProgram(
            ctypes.byref(program), source(module).encode(), f"{module}.cu".encode(), 0, None, None
        )
    )
    try:
        own = (f"--gpu-architecture={architecture}", "--ptxas-options=-v")
        options = [option.encode() for option in (*OPTIONS, *own)]
        status = nvrtc.nvrtcCompileProgram(
            program, len(options), (ctypes.c_char_p * len(options))(*options)
        )
        log = _text(nvrtc, program)
        if status or any("warning" in line and _DEPRECATED not in line for line in log.split("\n")):
            raise RuntimeError(f"{module}.cu for {architecture}:\n{log}")
        size = ctypes.c_size_t()
        _check(nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)))
        assert size.value > 0
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return log


@cache
def _nvrtc() -> Any:
    path = library_path()
    assert path is not None, "callers ask library_path first"
    return ctypes.CDLL(str(path))


def _check(status: int) -> None:
    assert status == 0, f"NVRTC error {status}"


def _text(nvrtc: Any, program: ctypes.c_void_p) -> str:
    size = ctypes.c_size_t()
    _check(nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size)))
    text = ctypes.create_string_buffer(size.value)
    _check(nvrtc.nvrtcGetProgramLog(program, text))
    return text.value.decode()


def _read(log: str) -> dict[str, Usage]:
    """Return what ``log`` says: after each entry's name a line on its stack and one on registers."""
    found = {}
    parts = _ENTRY.split(log)
    for name, words in zip(parts[1::3], parts[3::3], strict=True):
        stack, registers = _STACK.search(words), _REGISTERS.search(words)
        assert stack is not None, words
        assert registers is not None, words
        frame, stores, loads = (int(number) for number in stack.groups())
        shared = _SHARED.search(words)
        found[name] = Usage(
            int(registers[1]), frame, stores + loads, int(shared[1]) if shared else 0
        )
    return found
