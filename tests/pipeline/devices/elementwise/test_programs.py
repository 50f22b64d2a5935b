"""Programs of a manifest as the library takes them: names, numbers and places."""

import math
from typing import get_args

from models.network.activations import Arithmetic, Kind
from models.packs.records.pieces import ElementProgram, ElementStep
from pipeline.devices.elementwise.programs import NativeProgram, native_program
from pipeline.devices.interface.native import MAX_BLOCKS, MAX_TENSORS, OPERATORS
from tests.examples import over
from tests.pipeline.devices.elementwise.chains import native

_KINDS = (*get_args(Kind), *get_args(Arithmetic))


def described(program: NativeProgram) -> list[str]:
    return [f"{OPERATORS[step.operator]} {step.a} {step.b} to {step.to}" for step in program.steps]


def alone(kind: str, n_reads: int) -> NativeProgram | None:
    step = ElementStep(kind=kind, reads=tuple(range(n_reads)))  # type: ignore[arg-type]
    return native_program(ElementProgram(n_inputs=n_reads, steps=(step,), results=(n_reads,)))


def test_each_operator_is_some_kind_but_copy() -> None:
    found = {alone(kind, n_reads) for kind in _KINDS for n_reads in (1, 2)}
    assert {OPERATORS[each.steps[0].operator] for each in found if each} == {*OPERATORS} - {"copy"}


@over("kind, n_reads", [("exp", 1), ("gelu_tanh", 1), ("power", 2)])
def test_what_has_no_kernel_is_left_alone(kind: str, n_reads: int) -> None:
    assert alone(kind, n_reads) is None


@over(
    "step, numbers",
    [
        (ElementStep(kind="clip", reads=(0,), numbers=(0.0, 6.0)), (0, 6)),
        (ElementStep(kind="clip", reads=(0,), numbers=(None, 6.0)), (-math.inf, 6)),
        (ElementStep(kind="clip", reads=(0,), numbers=(1.0, None)), (1, math.inf)),
        (ElementStep(kind="relu", reads=(0,)), (0, math.inf)),
        (ElementStep(kind="add", reads=(0,), numbers=(-3.0,)), (-3, 0)),
        (ElementStep(kind="silu", reads=(0,), numbers=(1.702,)), (1.702, 0)),
    ],
)
def test_numbers(step: ElementStep, numbers: tuple[float, float]) -> None:
    (found,) = native(step).steps
    assert (found.p, found.q) == numbers


def test_values_in_between_take_blocks_that_nobody_reads_any_more() -> None:
    steps = [ElementStep(kind="add", reads=(0, 1)), ElementStep(kind="tanh", reads=(2,))]
    steps += [ElementStep(kind="multiply", reads=(3, 0)), ElementStep(kind="add", reads=(4, 1))]
    assert described(native(*steps, n_inputs=2)) == [
        "add 0 1 to 12",
        "tanh 12 12 to 12",
        "multiply 12 0 to 12",
        "add 12 1 to 2",
    ]


def test_a_result_over_what_is_read_is_written_last() -> None:
    """Input and first result may be the same memory: what else reads the input must have done so before."""
    steps = [ElementStep(kind="sigmoid", reads=(0,)), ElementStep(kind="multiply", reads=(0, 1))]
    assert described(native(*steps, results=(1, 2))) == [
        "sigmoid 0 0 to 12",
        "multiply 0 12 to 2",
        "copy 12 12 to 1",
    ]


def test_a_result_that_is_an_input_is_a_copy() -> None:
    for n_inputs in (1, 2):
        found = native_program(ElementProgram(n_inputs=n_inputs, results=tuple(range(n_inputs))))
        assert found is not None
        assert described(found) == [f"copy {at} {at} to {n_inputs + at}" for at in range(n_inputs)]


def test_nothing_to_do() -> None:
    assert native_program(ElementProgram(n_inputs=0)) == NativeProgram(0, ())


def added(n_inputs: int) -> ElementProgram:
    steps = [ElementStep(kind="add", reads=(0, 1))]
    steps += [ElementStep(kind="add", reads=(n_inputs + at - 2, at)) for at in range(2, n_inputs)]
    return ElementProgram(
        n_inputs=n_inputs, steps=tuple(steps), results=(n_inputs + len(steps) - 1,)
    )


def test_more_tensors_than_the_library_takes() -> None:
    assert native_program(added(MAX_TENSORS)) is None
    assert native_program(added(MAX_TENSORS - 1)) is not None


def test_more_values_in_between_than_the_library_takes() -> None:
    def kept(count: int) -> ElementProgram:
        steps = [ElementStep(kind="tanh", reads=(0,)) for _ in range(count)]
        steps += [ElementStep(kind="add", reads=(count, count - at)) for at in range(1, count)]
        return ElementProgram(n_inputs=1, steps=tuple(steps), results=(len(steps),))

    assert native_program(kept(MAX_BLOCKS)) is not None
    assert native_program(kept(MAX_BLOCKS + 1)) is None
