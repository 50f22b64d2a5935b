"""Operators on elements of a device in one pass: programs of pieces, bound to memory."""

import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.devices.elementwise.job_session import Bind, JobSession
from pipeline.devices.elementwise.library import Library, Placed
from pipeline.devices.elementwise.operator_node import chain_model, strides_of
from pipeline.devices.elementwise.pieces import Node, Piece, PieceError, read_piece
from pipeline.devices.elementwise.programs import WORTH_SHARING, Program, Step
from pipeline.devices.elementwise.recognising import recognised


@dataclass(frozen=True, slots=True)
class Wired:
    """A serialised piece, and what the values of its ports are called among others."""

    graph: bytes
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


#: A model of one node, and what its inputs and outputs are bound to.
AsNode = tuple[bytes, list[NDArray[Any]], list[NDArray[Any]]]


class OnePass:
    """Programs with ``threads`` threads of ``library``.

    ``bind_model``: loads models with operators of ours; then ONNX Runtime's threads run long programs.
    """

    def __init__(self, library: Library, threads: int, bind_model: Bind | None = None) -> None:
        self._library = library
        self._bind_model = bind_model
        self._threads = threads
        library.open_threads(threads)
        self._closed = weakref.finalize(self, library.close_threads, threads)

    @property
    def processor(self) -> str:
        """What the kernels were made for."""
        return self._library.processor

    def bind(
        self,
        program: Program,
        arrays: Mapping[str, NDArray[Any]],
        jobs: JobSession | None = None,
    ) -> Callable[[], None] | None:
        """Return what runs ``program`` on ``arrays``, which have all that it reads and its results.

        ``jobs``: runs it if it is long, None: threads of the library.

        None: it cannot run on these, which are no floats, or neither as large as the results nor one
        number for each channel, or overlap and are not the same.
        """
        if not program.steps:
            return _nothing
        used = _used(program, arrays)
        placed = _placed(program, used)
        if placed is None:
            return None
        size = max(used[name].size for name in program.results)
        if size < WORTH_SHARING or jobs is None:
            return self._library.bind(program, placed, size, self._threads)
        jobs.prepare()
        run = partial(jobs.run, self._library.hand_over_chain)
        return self._library.bind(program, placed, size, 1, run)

    @property
    def has_nodes(self) -> bool:
        """Whether ONNX Runtime's threads compute long programs, and those in one launch with others."""
        return self._bind_model is not None

    def of_model(self) -> JobSession | None:
        """Return what runs the long programs of a model; None: threads of the library do."""
        return None if self._bind_model is None else JobSession(self._bind_model)

    def as_node(self, program: Program, arrays: Mapping[str, NDArray[Any]]) -> AsNode | None:
        """Return ``program`` as a model of one node, and what it reads and writes of ``arrays``.

        None: ONNX Runtime does not compute it here.
        """
        if self._bind_model is None or not program.steps:
            return None
        used = _used(program, arrays)
        return None if _placed(program, used) is None else _node(program, used)

    def close(self) -> None:
        """End the threads that nobody else asks for."""
        self._closed()


def _node(program: Program, used: Mapping[str, NDArray[Any]]) -> AsNode | None:
    model = chain_model(program, {name: array.shape for name, array in used.items()})
    ports, n_inputs = list(used.values()), len(program.inputs)
    return None if model is None else (model, ports[:n_inputs], ports[n_inputs:])


def steps_of(parts: Sequence[Wired], kept: frozenset[str]) -> list[Step] | None:
    """Return the steps of pieces that follow each other; None: not all of it is known.

    ``kept``: those of their outputs that somebody else reads.
    """
    try:
        nodes = [node for number, part in enumerate(parts) for node in _nodes(part, number)]
    except PieceError:
        return None
    return recognised(nodes, kept)


def _nodes(part: Wired, number: int) -> list[Node]:
    piece = _piece(part.graph)
    if (len(piece.inputs), len(piece.outputs)) != (len(part.inputs), len(part.outputs)):
        raise PieceError("its ports are not those that the pack tells")
    names = dict(zip(piece.outputs, part.outputs, strict=True))
    names |= dict(zip(piece.inputs, part.inputs, strict=True))

    def known(name: str) -> str:
        return names.get(name, f"{number} {name}" if name else "")

    return [
        replace(
            node,
            inputs=tuple(map(known, node.inputs)),
            outputs=tuple(map(known, node.outputs)),
            constants={known(name): value for name, value in node.constants.items()},
        )
        for node in piece.nodes
    ]


@functools.lru_cache(maxsize=64)
def _piece(graph: bytes) -> Piece:
    return read_piece(graph)


def _used(program: Program, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return {name: arrays[name] for name in (*program.inputs, *sorted(program.results))}


def _placed(program: Program, used: Mapping[str, NDArray[Any]]) -> dict[str, Placed] | None:
    """Return where all that is ``used`` lies; None: a program does not run on it."""
    results = [used[name] for name in sorted(program.results)]
    placed: dict[str, Placed] = {}
    for name, array in used.items():
        strides = strides_of(array.shape, results[0].shape)
        if strides is None or array.dtype != np.float32 or not array.flags.c_contiguous:
            return None
        placed[name] = (array.ctypes.data, *strides)
    apart = (_apart(result, other) for result in results for other in used.values())
    return placed if all(apart) else None


def _nothing() -> None:
    """Be the launch of a program without steps."""


def _apart(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Return whether two arrays are the same memory, or have none in common."""
    first, second = one.ctypes.data, other.ctypes.data
    same = first == second and one.nbytes == other.nbytes
    return same or first + one.nbytes <= second or second + other.nbytes <= first
