"""The native library: found, checked, and called with the memory of tensors.

Where it cannot be used, the reason is one line, and ONNX Runtime computes what it would have.
"""

import ctypes
import functools
from collections.abc import Callable, Sequence
from pathlib import Path

from loader.native.compiling import LibraryError, check_machine, missing
from pipeline.devices.elementwise.building import BUILT, file_name, sources_digest
from pipeline.devices.elementwise.programs import NativeProgram
from pipeline.devices.interface.native import CTYPES

_Tensor, _Step, _Chain = (CTYPES.structures[name] for name in ("tensor", "step", "chain"))


class StretchStruct(ctypes.Structure):
    """`struct stretch`."""

    _fields_ = CTYPES.structures["stretch"]._fields_


#: Address of a tensor; with how many elements share a number, and how many numbers lie side by side: as
#: `struct tensor`.
Placed = tuple[int, int, int]


class Launcher:
    """A function of the library and what it is given. It is called without Python's lock."""

    __slots__ = ("_address", "_held", "_run")

    def __init__(self, run: Callable[[int], object], given: ctypes.Structure, held: object) -> None:
        self._run = run
        self._held = (given, held)
        self._address = ctypes.addressof(given)

    def __call__(self) -> None:
        self._run(self._address)


class Library:
    """The library in the file ``path``.

    Raises:
        LibraryError: it is not for this machine or processor, or not made of these sources.
    """

    def __init__(self, path: Path) -> None:
        check_machine(path)
        self.path = path
        try:
            self._functions = ctypes.CDLL(str(path))
            CTYPES.declare(self._functions)
            sources = self._functions.elementwise_sources().decode("ascii", "replace")
        except (OSError, AttributeError) as exc:
            raise LibraryError(f"{path.name} cannot be loaded: {str(exc)[:200]}") from exc
        if sources != sources_digest():
            raise LibraryError(f"{path.name} was made of other sources")
        if not self.processor:
            raise LibraryError(f"{path.name} has no kernels for this processor (AVX2 with FMA)")

    @property
    def processor(self) -> str:
        """What the kernels in use were made for: avx2, avx512, neon."""
        name: bytes = self._functions.elementwise_processor()
        return name.decode("ascii")

    def choose(self, processor: str) -> bool:
        """Use the kernels made for ``processor``; False: it is another one. No kernel may run."""
        return bool(self._functions.elementwise_choose(processor.encode("ascii")))

    def bind(
        self,
        program: NativeProgram,
        tensors: Sequence[Placed],
        n_elements: int,
        run: Callable[[int], object] | None = None,
    ) -> Launcher:
        """Return what runs ``program`` on ``n_elements`` of ``tensors``: what it reads, then its results.

        ``run``: gets the address of its structure; None: the thread that calls computes all of it.
        Tensors lie at the same place or apart: a program may write over what it reads element by element.
        """
        steps = (_Step * len(program.steps))(*(_Step(*step) for step in program.steps))
        chain = _Chain(n_elements, len(steps), ctypes.addressof(steps))
        for place, tensor in enumerate(tensors):
            chain.tensors[place] = _Tensor(*tensor)
        return Launcher(run or self._functions.elementwise_run, chain, steps)

    def expand(self, stretches: "ctypes.Array[StretchStruct]", source: int, target: int) -> None:
        """Write what ``stretches`` of the memory at ``source`` stand for to that at ``target``."""
        self._functions.elementwise_expand(stretches, len(stretches), source, target)

    def fit_task(self, task: ctypes.Structure, most_bytes: int) -> int:
        """Choose groups and rows of a task (devices/integers) for about ``most_bytes`` of each part.

        Return what a part takes; the task has that, too.
        """
        return int(self._functions.integers_fit(ctypes.byref(task), most_bytes))

    def run_task(self, task: ctypes.Structure) -> bool:
        """Run a task on the thread that calls; return whether there was memory for it."""
        return not self._functions.integers_run(ctypes.byref(task))

    def hand_over_chain(self, address: int | None) -> None:
        """As ``hand_over``, the chain at ``address``."""
        self._functions.elementwise_hand_over(address)

    def hand_over(self, task: ctypes.Structure | None) -> None:
        """Have the next operator `Job` of this thread's sessions run ``task``; None: nothing."""
        self._functions.integers_hand_over(None if task is None else ctypes.byref(task))

    def bind_average(self, average: ctypes.Structure, held: object) -> Launcher:
        """Return what runs ``average``, which points to what is ``held``."""
        return Launcher(self._functions.integers_average, average, held)

    def use_dot_products(self, wanted: bool) -> None:
        """Let quantised layers use the processor's products of four bytes, or not. None may run."""
        self._functions.integers_use_dot_products(wanted)


@functools.cache
def find_library(folder: Path = BUILT) -> Library | LibraryError:
    """Return the library of this installation, or why there is none that can be used."""
    path = folder / file_name()
    try:
        if not path.exists():
            raise missing(folder, "elementwise")
        return Library(path)
    except LibraryError as exc:
        return exc
