"""Programs of a manifest as the native library takes them: what kinds are there, and where values lie."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from models.packs.manifest import Manifest
from models.packs.records.pieces import Joined, Piece
from models.packs.records.programs import Program, Step
from models.packs.records.rows import RowOperator

#: The steps that the library knows, in the order of `enum operator` in kernels/chain.h.
OPERATORS = (
    "copy",
    "add",
    "subtract",
    "multiply",
    "divide",
    "add_number",
    "multiply_number",
    "divide_number",
    "negative",
    "clip",
    "leaky_relu",
    "hard_sigmoid",
    "hard_swish",
    "sigmoid",
    "silu",
    "tanh",
    "mish",
    "erf",
    "gelu",
)
#: Those that kinds of one value are; what is not here has no kernel.
_OF_ONE: Mapping[str, str] = {
    "add": "add_number",
    "clip": "clip",
    "divide": "divide_number",
    "erf": "erf",
    "gelu": "gelu",
    "hard_sigmoid": "hard_sigmoid",
    "hard_swish": "hard_swish",
    "leaky_relu": "leaky_relu",
    "mish": "mish",
    "multiply": "multiply_number",
    "negative": "negative",
    "relu": "clip",
    "sigmoid": "sigmoid",
    "silu": "silu",
    "tanh": "tanh",
}
#: And those of two.
_OF_TWO: Mapping[str, str] = {
    "add": "add",
    "divide": "divide",
    "multiply": "multiply",
    "subtract": "subtract",
}
_BOUNDS = (-math.inf, math.inf)
#: Tensors, and values in between that live at once, that one program has at most (kernels/chain.h).
MOST_TENSORS = 12
MOST_BLOCKS = 6
#: Elements from which on several threads are worth it, as in kernels/.
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
    """``steps`` on tensors, at the first places: ``n_inputs`` that are read, then ``n_results``."""

    n_inputs: int
    n_results: int
    steps: tuple[NativeStep, ...]


def program_of(manifest: Manifest, item: Piece | Joined | RowOperator) -> NativeProgram | None:
    """Return what ``item`` computes in one pass; None: something else, or the library cannot."""
    if item.elementwise is None:
        return None
    return native_program(manifest.programs[item.elementwise.program])


def native_program(program: Program) -> NativeProgram | None:
    """Return ``program`` as the library takes it; None: it has no such kernels, or too few places.

    Results may lie over what is read: all but the last one are written when nothing is read any more.
    """
    n_inputs, n_values = program.n_inputs, program.n_inputs + len(program.steps)
    if n_inputs + len(program.results) > MOST_TENSORS:
        return None
    todo = []
    for value, step in enumerate(program.steps, n_inputs):
        operator = (_OF_ONE if len(step.reads) == 1 else _OF_TWO).get(step.kind)
        if operator is None:
            return None
        todo.append(_Work(operator, step.reads, value, *_parameters(step)))
    tensors = {value: value for value in range(n_inputs)}
    for place, value in enumerate(program.results, n_inputs):
        if todo and value == n_values - 1:
            tensors[value] = place
        else:
            copied = n_values + place
            tensors[copied] = place
            todo.append(_Work("copy", (value,), copied))
    steps = _placed(todo, tensors)
    return None if steps is None else NativeProgram(n_inputs, len(program.results), tuple(steps))


class _Work(NamedTuple):
    """``operator`` on values by number, which makes another one."""

    operator: str
    reads: tuple[int, ...]
    makes: int
    p: float = 0.0
    q: float = 0.0


def _parameters(step: Step) -> tuple[float, float]:
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
    nobody reads it any more.
    """
    last = {value: at for at, work in enumerate(todo) for value in work.reads}
    free = list(range(MOST_TENSORS + MOST_BLOCKS - 1, MOST_TENSORS - 1, -1))
    at = dict(tensors)
    found = []
    for number, (operator, reads, made, p, q) in enumerate(todo):
        places = [at[value] for value in reads]
        # A kernel may write over what it reads.
        ended = (value for value in dict.fromkeys(reads) if last[value] == number)
        free += [at.pop(value) for value in ended if value not in tensors]
        if made not in tensors:
            if not free:
                return None
            at[made] = free.pop()
        found.append(NativeStep(OPERATORS.index(operator), at[made], places[0], places[-1], p, q))
        if made not in tensors and made not in last:
            free.append(at.pop(made))
    return found
