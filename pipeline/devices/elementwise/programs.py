"""Programs: what a chain of operators on elements comes to, as steps of the native library."""

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

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
#: Tensors, and values in between that live at once, that one program has at most (kernels/chain.h).
MOST_TENSORS = 12
MOST_BLOCKS = 6
#: Elements from which on several threads are worth it, as in kernels/.
WORTH_SHARING = 16 << 10


@dataclass(frozen=True, slots=True)
class Step:
    """``result`` = ``operator`` of one or two values, with its parameters ``p`` and ``q``.

    ``nodes``: which of the nodes that it was recognised in it stands for.
    """

    operator: str
    operands: tuple[str, ...]
    result: str
    p: float = 0.0
    q: float = 0.0
    nodes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Program:
    """``steps`` in order, by names of values; ``results``: those that somebody else reads."""

    steps: tuple[Step, ...]
    results: frozenset[str]

    @property
    def inputs(self) -> tuple[str, ...]:
        """The values that it reads and does not make, in the order of their first use."""
        made = {step.result for step in self.steps}
        read = (name for step in self.steps for name in step.operands)
        return tuple(dict.fromkeys(name for name in read if name not in made))

    def places(self, tensors: dict[str, int]) -> list[tuple[int, int, int]] | None:
        """Return the places of each step: of its result, of its operands (one: twice).

        ``tensors``: the places of values in memory; what is not there gets a block, which others take when
        nobody reads it any more. None: more blocks would be needed than there are.
        """
        last = {name: at for at, step in enumerate(self.steps) for name in step.operands}
        free = list(range(MOST_TENSORS + MOST_BLOCKS - 1, MOST_TENSORS - 1, -1))
        at = dict(tensors)
        found = []
        for number, step in enumerate(self.steps):
            reads = [at[name] for name in step.operands]
            done = [
                n for n in dict.fromkeys(step.operands) if n not in tensors and last[n] == number
            ]
            # A kernel may write over what it reads.
            free += [at.pop(name) for name in done]
            if step.result not in tensors:
                if not free:
                    return None
                at[step.result] = free.pop()
            found.append((at[step.result], reads[0], reads[-1]))
            if step.result not in tensors and step.result not in last:
                free.append(at.pop(step.result))
        return found


def program_of(steps: Sequence[Step], kept: Set[str]) -> Program | None:
    """Return the program of ``steps``; None: it makes nothing of ``kept``, or is too large for the library.

    Results may lie over what is read: all but the last one are written when nothing is read any more.
    """
    results = frozenset(step.result for step in steps) & kept
    early = {step.result for step in steps[:-1]} & results
    inside = {name: f"{name} before it is written" for name in early}
    moved = (
        replace(
            step,
            operands=tuple(inside.get(name, name) for name in step.operands),
            result=inside.get(step.result, step.result),
        )
        for step in steps
    )
    copies = (Step("copy", (inside[name],), name) for name in sorted(early))
    program = Program((*moved, *copies), results)
    tensors = dict.fromkeys((*program.inputs, *results), 0)
    fits = len(tensors) <= MOST_TENSORS and program.places(tensors) is not None
    return program if results and fits else None


def code_of(program: Program) -> tuple[object, ...]:
    """Return what ``program`` does whatever its values are called: equal ones do the same."""
    tensors = (*program.inputs, *sorted(program.results))
    places = program.places({name: place for place, name in enumerate(tensors)})
    assert places is not None, "larger than program_of makes them"
    steps = zip(program.steps, places, strict=True)
    return (
        len(program.inputs),
        len(program.results),
        *((step.operator, *place, step.p, step.q) for step, place in steps),
    )
