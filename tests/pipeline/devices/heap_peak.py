"""How much the C heap holds at most while something runs. A process of its own: it changes malloc.

Every block of a page and more is mapped, and glibc remembers the most that was ever mapped at once. Held
up to that mark before, the heap moves it by exactly what the call adds. Threads of a pool allocate when
they first run, which may be long after a session was made: the call waits until all of them are asleep.
"""

import ctypes
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnxruntime as ort

from models.packs.pack import open_pack
from models.packs.records.pieces import Operand
from models.runtime.heap import heap_bytes
from models.runtime.sessions import session_options

_MMAP_THRESHOLD = -3  # malloc.h
_libc = ctypes.CDLL(None)
_libc.malloc.restype = ctypes.c_void_p
_libc.malloc.argtypes = [ctypes.c_size_t]
_libc.free.argtypes = [ctypes.c_void_p]


def _mapped_at_most() -> int:
    with tempfile.TemporaryFile() as file:
        kept = os.dup(2)
        os.dup2(file.fileno(), 2)
        _libc.malloc_stats()
        _libc.fflush(None)
        os.dup2(kept, 2)
        os.close(kept)
        file.seek(0)
        return int(file.read().split(b"max mmap bytes")[1].split(b"=")[1].split()[0])


def peak_bytes(work: Callable[[], object]) -> int:
    """Return the most that mapped blocks grow by while ``work`` runs."""
    held = [_libc.malloc(_mapped_at_most())]
    before = _mapped_at_most()
    work()
    _libc.free(held[0])
    return _mapped_at_most() - before


def _wait_for_threads(seconds: float = 30.0) -> None:
    """Wait until all threads but this one sleep, in ten looks in turn: one may sleep for a lock.

    Raises ``TimeoutError`` if they do not within ``seconds``.
    """
    tasks, own = Path("/proc/self/task"), str(threading.get_native_id())
    ends = time.monotonic() + seconds
    asleep = 0
    while asleep < 10:
        stats = [(task / "stat").read_text() for task in tasks.iterdir() if task.name != own]
        states = {stat.rpartition(") ")[2][0] for stat in stats}
        asleep = asleep + 1 if states <= {"S"} else 0
        if time.monotonic() > ends:
            raise TimeoutError(f"threads still run after {seconds:g} s: {states}")
        time.sleep(0.0005)


def _piece(
    graph: bytes, inputs: Sequence[Operand], outputs: Sequence[Operand], threads: int
) -> int:
    options = session_options(optimise=False)
    options.intra_op_num_threads = threads
    options.enable_cpu_mem_arena = options.enable_mem_pattern = False
    options.add_session_config_entry("session.disable_prepacking", "1")
    session = ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    held = []
    for letter, operands in (("x", inputs), ("y", outputs)):
        for number, operand in enumerate(operands):
            array = np.ones(operand.shape, operand.dtype)
            held.append(array)
            bind = binding.bind_input if letter == "x" else binding.bind_output
            bind(f"{letter}{number}", "cpu", 0, array.dtype, array.shape, array.ctypes.data)
    _wait_for_threads()
    return peak_bytes(lambda: session.run_with_iobinding(binding))


def main(threads: Sequence[int], folders: Sequence[str]) -> None:
    """Print, for each pack in ``folders``, the peaks of each piece, by number of threads."""
    _libc.mallopt(_MMAP_THRESHOLD, 4096)
    assert heap_bytes() is not None
    packs = [open_pack(Path(folder)) for folder in folders]
    found = [
        {
            count: [
                _piece(pack.graphs[piece.graph], piece.inputs, piece.outputs, count)
                for piece in pack.manifest.pieces
            ]
            for count in threads
        }
        for pack in packs
    ]
    print(json.dumps(found))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2:])
