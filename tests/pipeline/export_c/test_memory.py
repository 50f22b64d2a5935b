"""Nothing is written over before it was read: every plan is judged by running its program on tokens."""

from hypothesis import given
from hypothesis import strategies as st

from models.network.fields import Array
from pipeline.export_c.lowering.calls import After, KernelStep, Same, StepProgram, ValuePointer
from pipeline.export_c.memory import PlacedMemory, plan_memory
from tests.examples import examples


class Judge:
    """Memory of tokens: each byte that a step writes is new, copies take along what they copy."""

    def __init__(self, program: StepProgram, memory: PlacedMemory) -> None:
        self._program = program
        self._places = memory.places
        self._held: dict[tuple[str | None, int], str] = {}
        self._wanted = {name: ["?"] * size(program, name) for name in program.values}
        self._left = {id(step) for step in memory.steps}

    def make(self, name: str, label: str) -> None:
        """Write all of ``name``."""
        tokens = [f"{label}.{index}" for index in range(size(self._program, name))]
        self._write(name, 0, tokens)

    def _write(self, name: str, start: int, tokens: list[str]) -> None:
        self._wanted[name][start : start + len(tokens)] = tokens
        place = self._places[name]
        for index, token in enumerate(tokens, start):
            self._held[place.port, place.offset + index] = token

    def read(self, name: str) -> None:
        """Check that all of ``name`` is where it should be."""
        place = self._places[name]
        places = ((place.port, place.offset + n) for n in range(size(self._program, name)))
        assert [self._held.get(at) for at in places] == self._wanted[name], name

    def copy(self, step: KernelStep, same: Same) -> None:
        """Do the copy, or, where it was left out, find that all lies there already."""
        tokens = self._wanted[same.source][same.source_offset :][: same.n_bytes]
        if id(step) in self._left:
            self.read(same.source)
            self._write(step.output, same.offset, tokens)
        else:
            self._wanted[step.output][same.offset : same.offset + same.n_bytes] = tokens

    def run(self, step: KernelStep) -> None:
        """Do a step; all that it reads stays until its end, but what it writes over element by element."""
        for name in step.reads:
            self.read(name)
        self.make(step.output, step.label)
        windows = () if step.pointwise else step.arguments
        for name in step.reads:
            over = name in step.in_place and self._places[name] == self._places[step.output]
            if not over or ValuePointer(name) in windows:
                self.read(name)


def size(program: StepProgram, name: str) -> int:
    return program.values[name].n_bytes


@st.composite
def programs(draw: st.DrawFn) -> tuple[StepProgram, tuple[str, ...], tuple[str, ...]]:
    """Functions, sums that may be written in place, windows that may not, parts, wholes and shapes."""
    values: dict[str, Array] = {}
    steps: list[KernelStep] = []

    def made(n_bytes: int) -> str:
        name = f"v{len(values)}"
        values[name] = Array(dtype="uint8", shape=(n_bytes,))
        return name

    inputs = tuple(made(draw(st.integers(1, 4))) for _ in range(draw(st.integers(1, 2))))
    for number in range(draw(st.integers(1, 12))):
        label = str(number)
        source = draw(st.sampled_from(sorted(values)))
        n_bytes = values[source].n_bytes
        alike = sorted(name for name in values if values[name].n_bytes == n_bytes)
        other = draw(st.sampled_from(alike))
        kind = draw(st.sampled_from(["map", "sum", "window", "shape", "part", "whole"]))
        if kind == "shape":
            output = made(n_bytes)
            steps.append(
                KernelStep(
                    label, "copy", (ValuePointer(source),), output, same=Same(source, 0, 0, n_bytes)
                )
            )
        elif kind == "part":
            half = max(n_bytes // 2, 1)
            for start in (0, n_bytes - half):
                output, same = made(half), Same(source, start, 0, half)
                steps.append(KernelStep(label, "copy", (ValuePointer(source),), output, same=same))
        elif kind == "whole":
            output = made(n_bytes + values[other].n_bytes)
            for name, start in ((source, 0), (other, n_bytes)):
                same = Same(name, 0, start, values[name].n_bytes)
                steps.append(KernelStep(label, "copy", (ValuePointer(name),), output, same=same))
        elif kind == "window":
            output = made(n_bytes)
            after = After(adds=True, addend=other)
            steps.append(
                KernelStep(label, "w", (ValuePointer(source),), output, (other,), after=after)
            )
        else:
            read = (source,) if kind == "map" else (source, other)
            output = made(n_bytes)
            steps.append(
                KernelStep(label, "m", tuple(map(ValuePointer, read)), output, read, pointwise=True)
            )
    inner = sorted(values.keys() - set(inputs))
    outputs = draw(st.lists(st.sampled_from(inner), min_size=1, max_size=3, unique=True))
    return StepProgram(tuple(steps), values), inputs, tuple(outputs)


@examples(19, many=750)
@given(programs(), st.booleans())
def test_nothing_is_lost(
    drawn: tuple[StepProgram, tuple[str, ...], tuple[str, ...]], ports_inside: bool
) -> None:
    program, inputs, outputs = drawn
    memory = plan_memory(program, inputs, outputs, ports_inside)
    judge = Judge(program, memory)
    for name in inputs:
        if name in memory.places:
            judge.make(name, name)
    for step in program.steps:
        if step.same is None:
            judge.run(step)
        else:
            judge.copy(step, step.same)
    for name in outputs:
        judge.read(name)
    assert max(memory.held, default=0) <= memory.arena_bytes
