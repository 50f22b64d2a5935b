"""Programs: what operators on elements that follow each other compute, as the compiler found it.

A program is known once: devices bind it, and look into no graph for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, TypeVar

import numpy as np
from pydantic import Field

from models.network.activations import Arithmetic, Kind
from models.network.fields import Count, Record

T = TypeVar("T")

#: Of 32 bits.
LARGEST = float(np.finfo(np.float32).max)

#: A number that is one of 32 bits, too; None: no bound.
Parameter = Annotated[float, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False)] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementStep(Record):
    """``kind`` of the values ``reads``: one, or two at the same place.

    Values are numbered: what the program reads, then what each step makes. ``numbers``: the parameters of
    an activation; of arithmetic of one value, what it has for the second.
    """

    kind: Kind | Arithmetic
    reads: tuple[Count, ...]
    numbers: tuple[Parameter, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementProgram(Record):
    """``steps`` in order on ``n_inputs`` values; ``results``: those that somebody else reads.

    A result that is an input is a copy of it.
    """

    n_inputs: Count
    steps: tuple[ElementStep, ...] = ()
    results: tuple[Count, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Elementwise(Record):
    """Program number ``program`` on the inputs ``reads``, whose results are the outputs ``makes``.

    Without ``makes`` there is nothing to do.
    """

    program: Count
    reads: tuple[Count, ...] = ()
    makes: tuple[Count, ...] = ()

    def ports(self, inputs: Sequence[T], outputs: Sequence[T]) -> tuple[list[T], list[T]]:
        """Return what it reads of ``inputs``, and what it makes of ``outputs``, as the program has them."""
        return [inputs[place] for place in self.reads], [outputs[place] for place in self.makes]
