"""What an infer request asks and what answers it, whatever carries them."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from numpy.typing import NDArray

from models.packs.records.ports import Port


class WantedOutput(NamedTuple):
    """An output that is asked for: raw bytes or JSON; its best ``n_classes`` instead of all, if any."""

    name: str
    is_binary: bool = False
    n_classes: int = 0


def all_wanted(outputs: Iterable[Port], is_binary: bool = False) -> tuple[WantedOutput, ...]:
    """Return what a request asks for that names no output."""
    return tuple([WantedOutput(port.name, is_binary) for port in outputs])


class ModelRequest(NamedTuple):
    """An infer request: an array a port, with its dtype and shape, contiguous.

    ``wanted``: outputs, in the order of the answer. ``timeout_seconds``: of the client's own.
    ``decoding_seconds``: what it took to make the arrays. ``priority``: 1 is the highest, 0 as usual.
    """

    inputs: dict[str, NDArray[Any]]
    wanted: tuple[WantedOutput, ...]
    id: str | None = None
    timeout_seconds: float | None = None
    decoding_seconds: float = 0.0
    priority: int = 0


class Output(NamedTuple):
    """One array of an answer."""

    name: str
    array: NDArray[Any]
    is_binary: bool = False


class ModelAnswer(NamedTuple):
    """The outputs of a model, in the order in which they were asked for."""

    model: str
    version: str
    id: str | None
    outputs: Sequence[Output]
