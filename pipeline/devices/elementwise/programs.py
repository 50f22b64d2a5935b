"""Programs of a manifest as the native library takes them: which kinds it has, and where values lie."""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from models.packs.records.pieces import ElementProgram, ElementStep
from pipeline.devices.interface.native import MAX_BLOCKS, MAX_TENSORS, OPERATOR_OF

_COPY = OPERATOR_OF["copy", 1]
_BOUNDS = (-math.inf, math.inf)


class NativeStep(NamedTuple):
    """As `struct step`; of one value ``b`` is ``a``."""

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
    if n_inputs + len(program.results) > MAX_TENSORS:
        return None
    todo = []
    for value, step in enumerate(program.steps, n_inputs):
        operator = OPERATOR_OF.get((step.kind, len(step.reads)))
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
    free = list(range(MAX_TENSORS + MAX_BLOCKS - 1, MAX_TENSORS - 1, -1))
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
