"""Quantised layers of packs on the native library: what a device has for them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from models.packs.pack import Pack
from models.packs.records.pieces import Piece
from pipeline.devices.elementwise.job_session import Bind
from pipeline.devices.elementwise.library import Library
from pipeline.devices.integers.binding import BoundTask, bind_average, bind_task
from pipeline.devices.integers.constants import in_one_block
from pipeline.devices.integers.deciding import Decision
from pipeline.devices.integers.layers import QuantisedAverage
from pipeline.devices.integers.nodes import MisfitError
from pipeline.devices.integers.pieces import read_graph
from pipeline.devices.integers.recognising import may_be_quantised, recognised
from pipeline.devices.integers.running import TaskRunner
from pipeline.devices.integers.tasks import Places
from pipeline.devices.integers.workspace import fitted

#: Grows when the same layers take another time: profiles of before hold no longer.
KERNELS_VERSION = 3


class NotAsDecidedError(Exception):
    """A piece is bound otherwise than was decided: its pack is another one, or its plan wrong."""


def is_quantised(pack: Pack) -> bool:
    """Return whether ``pack`` may have pieces that are computed here."""
    return any(map(may_be_quantised, pack.graphs))


class QuantisedLayers:
    """Quantised pieces with ``threads`` threads: of ONNX Runtime by ``bind``, else those of ``library``."""

    def __init__(self, library: Library, threads: int, bind: Bind | None = None) -> None:
        self._library = library
        self._threads = threads
        self._bind = bind

    @property
    def kernels(self) -> str:
        """What tells these kernels from others that take another time."""
        return f"{self._library.processor} {KERNELS_VERSION}"

    def fitted(self, pack: Pack) -> Pack:
        """Return ``pack`` with ``native`` of the pieces that are computed here, and what they take.

        Raises:
            PackError: tensors of a quantised layer do not fit each other.
        """
        if pack.manifest.target.capability is not None or not is_quantised(pack):
            return pack  # what a GPU does not run has sessions
        decision = Decision(pack, self._library, self._threads, self._bind is not None)
        return replace(pack, manifest=decision.manifest())

    def of_model(self) -> "NativePieces":
        """Return what binds the pieces of a model that ``fitted`` said are native."""
        return NativePieces(self._library, self._threads, TaskRunner(self._library, self._bind))


class NativePieces:
    """Binds native pieces to memory; ``runner`` computes them, one after the other."""

    def __init__(self, library: Library, threads: int, runner: TaskRunner) -> None:
        self._library = library
        self._threads = threads
        self._runner = runner

    def bind(
        self, graph: bytes, piece: Piece, inputs: Sequence[Any], outputs: Sequence[Any]
    ) -> Callable[[], None]:
        """Return what runs ``piece``, a native one whose serialised graph is ``graph``, on memory.

        An input that a request holds has ``put_rows`` instead of being an array.

        Raises:
            NotAsDecidedError: it cannot run so.
        """
        try:
            found = recognised(graph, piece)
        except MisfitError as exc:
            raise NotAsDecidedError(str(exc)) from exc
        if found is None or piece.native is None:
            raise NotAsDecidedError("the plan has it on native kernels, which do not know it")
        read = read_graph(graph)
        ports = (*zip(read.inputs, inputs, strict=True), *zip(read.outputs, outputs, strict=True))
        constants, block = in_one_block(read.tensors)
        places = constants | dict(ports)
        over = None if isinstance(found, QuantisedAverage) else found.over
        if not _apart(places, found.result, over):
            raise NotAsDecidedError("the plan has its result over what it reads")
        # Who binds keeps the rest as long as what is returned.
        if isinstance(found, QuantisedAverage):
            return bind_average(found, places, block, self._library)
        workspace = piece.native.workspace_bytes
        task = fitted(found, self._library, self._threads, workspace)
        self._runner.prepare(task)
        return bind_task(found, places, BoundTask(task, self._runner.run, block), workspace)


def _apart(places: Places, result: str, over: str | None) -> bool:
    """Return whether what is made lies over nothing that is read, or just ``over``: rows are read again."""
    made = places[result]
    return not any(
        np.may_share_memory(made, each)
        for name, each in places.items()
        if name != result and isinstance(each, np.ndarray)
        if name != over or each.ctypes.data != made.ctypes.data
    )
