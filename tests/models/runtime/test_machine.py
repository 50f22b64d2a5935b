"""What models/ uses of the machine: target, heap, sessions."""

import ctypes
import gc
import subprocess
import sys
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.errors import ModelError
from models.packs import target
from models.packs.target import Target, cuda_target, host_target, named_target
from models.records import plain
from models.runtime import heap
from models.runtime.heap import (
    give_back,
    heap_bytes,
    kept_for_kernels,
    no_collections,
    trim_heap,
)
from models.runtime.sessions import SessionError, open_piece, open_resident, use_threads
from tests.models.nets import one_layer


@pytest.mark.parametrize(
    ("flags", "extension", "block"),
    [
        ("sse2 avx avx2 fma avx512f avx512bw avx512dq avx512vl", "avx512", 16),
        ("sse2 avx avx2 fma avx512f", "avx2", 8),
        ("sse2 avx avx2", "avx", 8),
        ("sse2", "sse2", 1),
        ("", "sse2", 1),
    ],
)
def test_target_follows_the_instruction_set(
    flags: str, extension: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(target, "_cpu_flags", lambda: frozenset(flags.split()))
    found = host_target.__wrapped__()
    assert (found.isa, found.block) == (f"x86_64-{extension}", block)
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    arm = host_target.__wrapped__()
    assert (arm.isa, arm.block) == ("aarch64-generic", 1)
    # Plain layouts are the same on all CPUs, blocked ones on none but their own.
    assert replace(arm, exact_weights=64).runs_on(found)
    assert found.runs_on(arm) is (block == 1)
    assert not arm.runs_on(cuda_target(72))
    assert not cuda_target(72).runs_on(arm)


def test_targets_of_other_machines_are_named() -> None:
    assert named_target("aarch64-generic").block == 1
    assert (named_target("x86_64-avx2").block, named_target("x86_64-avx512").block) == (8, 16)
    with pytest.raises(ModelError, match="aarch64-generic"):
        named_target("arm64")


@pytest.mark.parametrize(
    ("machine", "cpu_info", "expected"),
    [
        ("x86_64", "flags\t\t: fpu avx2 avx512f avx512_vnni\n", 128),
        ("x86_64", "flags\t\t: fpu avx2 avx_vnni\n", 128),
        ("x86_64", "flags\t\t: fpu avx2 avx512f\n", 64),
        ("aarch64", "processor : 0\nFeatures\t: fp asimd asimddp\n", 128),
        ("aarch64", "Features\t: fp asimd\n", 127),
        ("x86_64", "", 64),
    ],
)
def test_weights_have_exact_sums_up_to_some_size(
    machine: str, cpu_info: str, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text(cpu_info)
    monkeypatch.setattr(target, "_CPU_INFO", tmp_path / "cpuinfo")
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert target.host_target.__wrapped__().exact_weights == expected


def test_target_is_of_this_machine() -> None:
    assert host_target().runs_on(host_target())
    assert host_target().runs_on(Target(**{**plain(host_target()), "onnxruntime": "0"}))


class _MallInfo(ctypes.Structure):
    """``struct mallinfo2`` of glibc 2.33 and later."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


@pytest.mark.parametrize("n_bytes", [100 << 10, 50 << 20])
def test_heap_counts_what_c_allocates(n_bytes: int) -> None:
    """In the heap, and mapped; as ``mallinfo2`` does, where that is."""
    before = heap_bytes()
    if before is None:
        pytest.skip("the C library does not tell")
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    told = []
    for count in (0, 1, 20):
        memory = [libc.malloc(n_bytes) for _ in range(count)]
        after = heap_bytes()
        assert after is not None
        assert after - before > n_bytes * count - (4 << 10)  # other threads free some, too
        if hasattr(libc, "mallinfo2"):
            libc.mallinfo2.restype = _MallInfo
            info = libc.mallinfo2()
            told.append(after - info.uordblks - info.hblkhd)
        for each in memory:
            libc.free(each)
    assert max(told, default=0) - min(told, default=0) < 4 << 10
    trim_heap()


_OF_THREADS = """
import ctypes, threading
from models.runtime.heap import bound_heap
bound_heap()
libc = ctypes.CDLL(None)
libc.malloc.argtypes, libc.fdopen.restype = [ctypes.c_size_t], ctypes.c_void_p
met = threading.Barrier(4)
def take():
    libc.malloc(100 << 10)
    met.wait(30)
threads = [threading.Thread(target=take) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
libc.malloc_info(0, ctypes.c_void_p(libc.fdopen(1, b"w")))
libc.fflush(None)
"""


def test_what_threads_leave_free_is_there_for_all() -> None:
    command = [sys.executable, "-c", _OF_THREADS]
    told = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    if "<malloc" not in told.stdout:
        pytest.skip("the C library does not tell")
    assert told.stdout.count("<heap nr=") == 1


def test_heap_of_another_c_library_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap, "_libc", object)
    assert heap_bytes() is None
    trim_heap()


def test_sessions_share_their_threads(tmp_path: Path) -> None:
    threads = use_threads()
    assert use_threads(threads + 1) == threads
    onnx.save(one_layer(), tmp_path / "m.onnx")
    inputs = {"x": np.ones((1, 4, 5, 5), np.float32)}
    (one,) = open_piece(one_layer().SerializeToString()).run(None, inputs)
    (other,) = open_resident(str(tmp_path / "m.onnx")).run(None, inputs)
    assert np.abs(one - other).max() <= 1e-6


def test_what_is_no_graph_is_refused_in_silence(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SessionError):
        open_piece(b"not a graph")
    with pytest.raises(SessionError):
        open_resident("/none.onnx")
    assert capfd.readouterr() == ("", "")


@given(st.lists(st.booleans(), max_size=12), st.booleans())
def test_collections_go_on_when_nobody_is_against_them(steps: list[bool], collected: bool) -> None:
    """Blocks of several threads begin and end in any order."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(heap, "is_claimed", lambda: True)
        _check_collections(steps, collected)


def test_in_a_process_of_another_program_collector_and_heap_stay_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(gc, "collect", lambda: calls.append("collect"))
    monkeypatch.setattr(gc, "disable", lambda: calls.append("disable"))
    monkeypatch.setattr(heap, "_libc", lambda: calls.append("malloc"))
    with no_collections(), kept_for_kernels(1 << 20):
        give_back()
        trim_heap()
    assert calls == []
    monkeypatch.setattr(heap, "is_claimed", lambda: True)
    monkeypatch.setattr(gc, "enable", lambda: None)
    with no_collections():
        give_back()
    assert set(calls) == {"collect", "disable", "malloc"}


def _check_collections(steps: list[bool], collected: bool) -> None:
    before = gc.isenabled()
    (gc.enable if collected else gc.disable)()
    open_blocks: list[AbstractContextManager[None]] = []
    try:
        for begins in steps:
            if begins:
                open_blocks.append(no_collections())
                open_blocks[-1].__enter__()
                assert not gc.isenabled()
            elif open_blocks:
                open_blocks.pop(len(open_blocks) // 2).__exit__(None, None, None)
        while open_blocks:
            open_blocks.pop(0).__exit__(None, None, None)
        assert gc.isenabled() is collected
    finally:
        (gc.enable if before else gc.disable)()
