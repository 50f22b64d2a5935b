"""Sums and functions become part of the step that made what they read, if nobody else reads it.

So nothing between them is kept, and a sum may lie where what it adds lay.
"""

from collections import Counter
from dataclasses import replace

from pipeline.export_c.lowering.steps import ADD, After, Named, Pointer, Program, Step


def fused(program: Program, outputs: frozenset[str]) -> Program:
    """Return ``program`` with fewer steps; ``outputs``: values that the caller reads."""
    readers = Counter(name for step in program.steps for name in step.reads)
    made = Counter(step.output for step in program.steps)
    steps: dict[int, Step] = {}
    open_at: dict[str, int] = {}  # where the step is whose result only one other reads
    for index, step in enumerate(program.steps):
        steps[index] = step
        for name in sorted(set(step.reads) & open_at.keys(), key=lambda name: -open_at[name]):
            whole = _joined(steps[open_at[name]], step, name, program)
            if whole is not None:
                # Here and not where the first was: what is added may be made in between.
                del steps[open_at.pop(name)]
                steps[index] = whole
                break
        last = steps[index].output
        if readers[last] == 1 and made[last] == 1 and last not in outputs:
            open_at[last] = index
    return replace(program, steps=tuple(steps[index] for index in sorted(steps)))


def _joined(first: Step, then: Step, name: str, program: Program) -> Step | None:
    """Return ``first`` with ``then``, which reads its result ``name``, in it; None where it cannot be."""
    after = first.after
    if after is None or after.function.name or then.after is None:
        return None
    if then.kernel == "apply":
        return _with(first, then, replace(after, function=then.after.function))
    addend = _addend(then, name, program)
    if after.adds and after.addend is None and addend is not None:
        added = replace(after, addend=addend, function=then.after.function)
        return replace(_with(first, then, added), in_place=(addend,))
    return None


def _with(first: Step, then: Step, after: After) -> Step:
    """Return ``first`` that makes what ``then`` made."""
    arguments = tuple(
        replace(item, name=then.output)
        if isinstance(item, Pointer) and item.name == first.output
        else item
        for item in first.arguments
    )
    return replace(first, arguments=arguments, output=then.output, after=after)


def _addend(then: Step, name: str, program: Program) -> str | None:
    """Return what ``then`` adds to ``name``, element by element; None: it does something else."""
    others = [other for other in then.reads if other != name]
    if Named(ADD) not in then.arguments or len(others) != 1 or then.weights:
        return None
    shapes = {program.values[value].shape for value in (name, others[0], then.output)}
    return others[0] if len(shapes) == 1 else None
