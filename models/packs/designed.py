"""What whoever designed a network counted of its memory, layer by layer, before anything was compiled.

In numbers, not bytes: what one takes depends on the precision.
"""

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator

_Record = ConfigDict(frozen=True, extra="forbid")


class DesignedLayer(BaseModel):
    """``numbers``: what the layer holds at once; ``equation``: how that was counted."""

    model_config = _Record

    name: str
    numbers: PositiveInt
    equation: str


class DesignedMemory(BaseModel):
    """``budget``: the numbers that the network was designed for; no layer holds more."""

    model_config = _Record

    budget: PositiveInt
    layers: Annotated[tuple[DesignedLayer, ...], Field(min_length=1)]

    @property
    def peak(self) -> DesignedLayer:
        """Return the layer that holds most."""
        return max(self.layers, key=lambda layer: layer.numbers)

    @model_validator(mode="after")
    def _within(self) -> Self:
        if self.peak.numbers > self.budget:
            raise ValueError(
                f"layer {self.peak.name!r} holds {self.peak.numbers} of {self.budget} numbers"
            )
        return self
