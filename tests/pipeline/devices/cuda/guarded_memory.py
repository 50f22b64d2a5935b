"""Memory for launches: those that read or write outside a tensor fail.

A page without access follows each tensor, and NaN lie around it: what is read there shows.
"""

import ctypes
import math
import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.devices.cuda.call import DevicePointer, KernelLaunch
from tests.pipeline.devices.cuda.space import ON_GPU, Kernels, space

Array = NDArray[Any]
_PATTERN = np.uint32(0xFFFFFFFF)  # a NaN
_PAGE = mmap.PAGESIZE
_mprotect = ctypes.CDLL(None, use_errno=True).mprotect
_mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_NO_ACCESS = 0


class _Guarded:
    """float32 numbers, NaN until they are written, ``offset`` numbers behind a multiple of 16 bytes."""

    def __init__(self, shape: Sequence[int], offset: int) -> None:
        count = math.prod(shape)
        memory = _fenced(4 * (count + 64)).view(np.uint32)
        memory[:] = _PATTERN
        skipped = len(memory) - 4 * -(-(offset + count) // 4) + offset
        self.array = memory[skipped : skipped + count].view(np.float32).reshape(shape)
        self._before, self._behind = memory[:skipped], memory[skipped + count :]

    def check(self) -> None:
        assert (self._before == _PATTERN).all(), "written before a tensor"
        assert (self._behind == _PATTERN).all(), "written behind a tensor"


def _fenced(n_bytes: int) -> NDArray[np.uint8]:
    """Memory of at least so many bytes; on the host with a page behind it that may not be touched."""
    usable = -(-n_bytes // _PAGE) * _PAGE
    if ON_GPU:
        return space(usable)
    pages = np.frombuffer(mmap.mmap(-1, usable + _PAGE), np.uint8)
    assert _mprotect(pages.ctypes.data + usable, _PAGE, _NO_ACCESS) == 0
    return pages[:usable]


class HostMemory:
    """Inputs (None where one is left out), outputs of float32 and scratch."""

    def __init__(
        self,
        inputs: Sequence[Array | None],
        outputs: Sequence[Sequence[int]],
        scratch_bytes: int = 0,
        misaligned: Sequence[int] = (),
    ) -> None:
        """``misaligned``: floats by which inputs, then outputs, miss a multiple of 16 bytes."""
        offsets = [*misaligned, *[0] * (len(inputs) + len(outputs))]
        self._given = [
            _Guarded((0,) if array is None else array.shape, offset)
            for array, offset in zip(inputs, offsets, strict=False)
        ]
        for guarded, array in zip(self._given, inputs, strict=True):
            if array is not None:
                guarded.array[:] = array
        self._originals = [guarded.array.copy() for guarded in self._given]
        self._made = [
            _Guarded(shape, offset)
            for shape, offset in zip(outputs, offsets[len(inputs) :], strict=False)
        ]
        self._scratch = _Guarded((scratch_bytes // 4,), 0)

    @property
    def outputs(self) -> list[Array]:
        return [guarded.array for guarded in self._made]

    def run(self, kernels: Kernels, calls: Sequence[KernelLaunch]) -> None:
        """Run ``calls`` and check that inputs and guards are what they were."""
        for call in calls:
            if call.module == "cublas" and not ON_GPU:
                self._sgemm(call)
            else:
                kernels.launch(call, self._address)
        for guarded in (*self._given, *self._made, self._scratch):
            guarded.check()
        for guarded, original in zip(self._given, self._originals, strict=True):
            np.testing.assert_array_equal(guarded.array, original)

    def _address(self, pointer: DevicePointer) -> int:
        return int(self._space(pointer).ctypes.data) + pointer.offset

    def _space(self, pointer: DevicePointer) -> Array:
        if pointer.space == "inner":
            return self._scratch.array
        return (self._given if pointer.space == "input" else self._made)[pointer.index].array

    def _matrix(self, pointer: Any, rows: int, columns: int, stride: int) -> Array:
        flat = self._space(pointer).reshape(-1)[pointer.offset // 4 :]
        return np.lib.stride_tricks.as_strided(
            flat[: (rows - 1) * stride + columns], (rows, columns), (4 * stride, 4)
        )

    def _sgemm(self, call: KernelLaunch) -> None:
        """What cuBLAS does; a matrix there is the transposed one here."""
        arguments: Any = call.arguments
        transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc = arguments
        assert (transa, transb, alpha, beta, call.grid) == (0, 0, 1.0, 0.0, (0, 0, 0))
        left, right = self._matrix(b, n, k, ldb), self._matrix(a, k, m, lda)
        self._matrix(c, n, m, ldc)[:] = left.astype(np.float64) @ right.astype(np.float64)
