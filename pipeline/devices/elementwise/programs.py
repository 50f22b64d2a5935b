"""Programs of a manifest as the native library takes them: which kinds it has, and where values lie."""

import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, get_args

from models.network.activations import Arithmetic
from models.packs.records.pieces import ElementProgram, ElementStep
from pipeline.devices.elementwise.building import SOURCES

#: The steps that the library computes, in its order.
OPERATORS = tuple(re.findall(r"EACH\((\w+)\)", (SOURCES / "chain.h").read_text("ascii")))
_COPY, _CLIP = map(OPERATORS.index, ("copy", "clip"))


def _kind(operator: str) -> tuple[str, int]:
    """Return which kind an operator is, and of how many values."""
    kind = operator.removesuffix("_number")
    return kind, 2 if kind == operator and kind in get_args(Arithmetic) else 1


_OPERATOR_OF = {_kind(operator): at for at, operator in enumerate(OPERATORS)} | {("relu", 1): _CLIP}
_BOUNDS = (-math.inf, math.inf)
# Limits of kernels/chain.h: library.py compares them when it loads the library. Steps have none.
#: Tensors, and values in between that live at once, that one program has at most.
MOST_TENSORS = 12
MOST_BLOCKS = 6
#: Axes of the results of a program that is a node of ONNX Runtime.
MAX_AXES = 8
#: Elements from which on several threads compute a program.
WORTH_SHARING = 16 << 10


class NativeStep(NamedTuple):
    """As `struct step` in kernels/chain.h; of one value ``b`` is ``a``."""

    operator: int
    to: int
    a: int
    b: int
    p: float = 0.0
    q: float = 0.0


class NativeProgram(NamedTuple):
    """``steps`` on tensors, at the first places: ``n_inputs`` that are read, then results."""

    n_inputs: int
    steps: tuple[NativeStep, ...]


@lru_cache(maxsize=256)  # asked of each piece, and many are alike
def native_program(program: ElementProgram) -> NativeProgram | None:
    """Return ``program`` as the library takes it; None: it has no such kernels, or too few places.

    Results may lie over what is read: all but the last one are written when nothing is read any more.
    """
    n_inputs, n_values = program.n_inputs, program.n_inputs + len(program.steps)
    if n_inputs + len(program.results) > MOST_TENSORS:
        return None
    todo = []
    for value, step in enumerate(program.steps, n_inputs):
        operator = _OPERATOR_OF.get((step.kind, len(step.reads)))
        if operator is None:
            return None
        todo.append(_Work(operator, step.reads, value, *_parameters(step)))
    tensors = {value: value for value in range(n_inputs)}
    for place, value in enumerate(program.results, n_inputs):
        if value == n_values - 1 >= n_inputs:
            tensors[value] = place
        else:
            copied = n_values + place
            tensors[copied] = place
            todo.append(_Work(_COPY, (value,), copied))
    steps = _placed(todo, tensors)
    return None if steps is None else NativeProgram(n_inputs, tuple(steps))


class _Work(NamedTuple):
    """``operator`` on values by number, which makes another one."""

    operator: int
    reads: tuple[int, ...]
    makes: int
    p: float = 0.0
    q: float = 0.0


def _parameters(step: ElementStep) -> tuple[float, float]:
    if step.kind == "relu":
        return 0.0, math.inf
    numbers = (
        bound if number is None else number
        for number, bound in zip(step.numbers, _BOUNDS, strict=False)
    )
    p, q, *_ = (*numbers, 0.0, 0.0)
    return p, q


def _placed(todo: Sequence[_Work], tensors: Mapping[int, int]) -> list[NativeStep] | None:
    """Return ``todo`` with the places of values; None: more blocks would be needed than there are.

    ``tensors``: the places of values in memory; what is not there gets a block, which others take when
    it is not read any more.
    """
    last = {value: at for at, work in enumerate(todo) for value in work.reads}
    free = list(range(MOST_TENSORS + MOST_BLOCKS - 1, MOST_TENSORS - 1, -1))
    at = dict(tensors)
    native_steps = []
    for number, (operator, reads, result, p, q) in enumerate(todo):
        places = [at[value] for value in reads]
        # A kernel may write over what it reads.
        ended = (value for value in dict.fromkeys(reads) if last[value] == number)
        free += [at.pop(value) for value in ended if value not in tensors]
        if result not in tensors:
            if not free:
                return None
            at[result] = free.pop()
        native_steps.append(NativeStep(operator, at[result], places[0], places[-1], p, q))
        if result not in tensors and result not in last:
            free.append(at.pop(result))
    return native_steps
