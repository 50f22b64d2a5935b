"""What a request gives to an engine: arrays, or tensors whose rows are made when they are read."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from models.images.picture_rows import RowSource

T = TypeVar("T")


class RowTensor(RowSource, Protocol):
    """A tensor [1, planes, rows, columns] that is nowhere held whole."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    @property
    def n_bytes(self) -> int:
        """What it holds."""

    def put(self, target: NDArray[Any]) -> None:
        """Write all of it to ``target``, of its shape."""

    def __array__(self) -> NDArray[Any]: ...


Tensor = NDArray[Any] | RowTensor
#: By name.
Tensors = Mapping[str, Tensor]
Arrays = Mapping[str, NDArray[Any]]
#: Makes something of the outputs of a sweep: views, read-only, of memory that the next sweep writes to.
Take = Callable[[Arrays], T]


def copies(outputs: Arrays) -> dict[str, NDArray[Any]]:
    """Take all outputs as they are."""
    return {name: array.copy() for name, array in outputs.items()}


class GivenRows:
    """Holds, during a sweep, a tensor of a request that is read by rows."""

    def __init__(self) -> None:
        self._tensor: Tensor | None = None

    def hold(self, tensor: Tensor) -> None:
        """Read from ``tensor`` from now on."""
        self._tensor = tensor

    def put_rows(
        self,
        target: NDArray[Any],
        first_plane: int,
        first_row: int,
        first_column: int | None = None,
    ) -> None:
        """As `RowSource` says."""
        tensor = self._tensor
        if isinstance(tensor, np.ndarray):
            # Of blocked layout a plane is a block of channels, beside each other in a row.
            line = target.shape[2] if first_column is None else tensor.shape[3]
            first = first_plane, first_row, first_column or 0
            part = (slice(at, at + n) for at, n in zip(first, target.shape, strict=True))
            np.copyto(target, tensor.reshape(-1, tensor.shape[2], line)[*part])
        else:
            assert tensor is not None, "read before a request gave something"
            tensor.put_rows(target, first_plane, first_row, first_column)

    def whole(self) -> NDArray[Any] | None:
        """Return it where the request holds it whole."""
        return self._tensor if isinstance(self._tensor, np.ndarray) else None

    def clear(self) -> None:
        """Let go of it."""
        self._tensor = None
