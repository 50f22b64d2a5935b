"""What goes in and out, and what is said of it: defaults, labels, the file it all came from."""

import base64
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from models.network.fields import Array, Count, Name
from models.records import Bounds, PositiveInt, Record

# What the designers of a network counted of its memory, layer by layer, before anything was compiled.
#
# In numbers, not bytes: what one takes depends on the precision.


@dataclass(frozen=True, slots=True, kw_only=True)
class DesignedLayer(Record):
    """``numbers``: what the layer holds at once; ``equation``: how that was counted."""

    name: str
    numbers: PositiveInt
    equation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DesignedMemory(Record):
    """``budget``: the numbers that the network was designed for; no layer holds more."""

    budget: PositiveInt
    layers: Annotated[tuple[DesignedLayer, ...], Bounds(min_length=1)]

    @property
    def peak(self) -> DesignedLayer:
        """Return the layer that holds most."""
        return max(self.layers, key=lambda layer: layer.numbers)

    def __post_init__(self) -> None:
        if self.peak.numbers > self.budget:
            raise ValueError(
                f"layer {self.peak.name!r} holds {self.peak.numbers} of {self.budget} numbers"
            )


Scores = Literal["probabilities", "logits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile(Record):
    """The file that was compiled."""

    file: str
    n_bytes: Count
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSizes(Record):
    """Layers and bytes as the source's own tool counts them (Darknet: batch-norm arrays included)."""

    tool: str
    layers: Count
    weight_bytes: Count
    largest_layer_bytes: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Port(Array):
    """A graph input or output and the value that holds it.

    ``default``: the bytes of what an input holds that a request leaves out, base64; None: it must be given.
    """

    name: Name
    value: Count
    default: str | None = None

    def default_array(self) -> NDArray[Any] | None:
        """Return the default, with the dtype and shape of the port, or None.

        Raises:
            ValueError: it is not that.
        """
        if self.default is None:
            return None
        data = base64.b64decode(self.default, validate=True)
        if self.is_loose or len(data) != self.n_bytes:
            raise ValueError(f"default: {len(data)} bytes, not {self.n_bytes}")
        return np.frombuffer(data, self.dtype).reshape(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Classification(Record):
    """How scores become labels: which output, what it holds, and the label of each index."""

    output: str
    scores: Scores
    labels: tuple[str, ...] = ()
