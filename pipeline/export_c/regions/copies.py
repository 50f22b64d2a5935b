"""Copies of all of a value under another name, which are none: later steps read the value itself."""

from collections.abc import Mapping
from dataclasses import replace

from pipeline.export_c.lowering.steps import Argument, Pointer, Program, Step


def without_whole_copies(program: Program, outputs: frozenset[str]) -> Program:
    """Return ``program`` without steps that make one value of all of another; ``outputs`` stay."""
    names: dict[str, str] = {}
    steps = []
    for step in program.steps:
        named = _renamed(step, names)
        if _is_whole_copy(named, program) and named.output not in outputs:
            assert named.same is not None
            names[named.output] = named.same.source
        else:
            steps.append(named)
    return replace(program, steps=tuple(steps))


def _is_whole_copy(step: Step, program: Program) -> bool:
    same = step.same
    if same is None:
        return False
    sizes = {program.values[name].n_bytes for name in (same.source, step.output)}
    return sizes == {same.n_bytes}


def _renamed(step: Step, names: Mapping[str, str]) -> Step:
    """Return ``step`` on the values that ``names`` says instead."""
    if not names.keys() & {*step.reads, *step.in_place}:
        return step

    def other(item: Argument) -> Argument:
        return (
            replace(item, name=names.get(item.name, item.name))
            if isinstance(item, Pointer)
            else item
        )

    same, after = step.same, step.after
    if same is not None:
        same = replace(same, source=names.get(same.source, same.source))
    if after is not None and after.addend is not None:
        after = replace(after, addend=names.get(after.addend, after.addend))
    arguments = tuple(map(other, step.arguments))
    in_place = tuple(names.get(name, name) for name in step.in_place)
    return replace(step, arguments=arguments, in_place=in_place, same=same, after=after)


def live(program: Program, outputs: frozenset[str]) -> Program:
    """Return ``program`` without steps whose results nobody reads."""
    wanted, kept = set(outputs), []
    for step in reversed(program.steps):
        if step.output in wanted:
            kept.append(step)
            wanted.update(step.reads)
    return replace(program, steps=tuple(kept[::-1]))
