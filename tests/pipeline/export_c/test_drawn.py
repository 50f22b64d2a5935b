"""Networks at random (drawn.py) in C, beside the engine."""

import random
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from models.network.activations import Kind
from models.network.catalogue import OPERATORS
from pipeline.export_c.lowering.functions import FUNCTIONS
from tests.examples import thinned
from tests.pipeline.export_c.compiled import TARGETS, needs_compiler
from tests.pipeline.export_c.drawn import FLAGS, attempt, draw_case, exported
from tests.pipeline.export_c.program import answers_of, program

pytestmark = needs_compiler

#: Operators that are refused, though the compiler has them.
_NOT_IN_C = {
    *(
        name
        for name, record in OPERATORS.items()
        if record.function in get_args(Kind) and record.function not in FUNCTIONS
    ),
    *("GroupNormalization", "InstanceNormalization", "LRN", "LogSoftmax", "ReduceL1", "ReduceL2"),
    *("ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare"),
}
_SANITIZERS = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


@pytest.mark.parametrize("number", thinned(range(6), 3))
def test_networks_answer_as_in_the_engine(number: int, tmp_path: Path) -> None:
    attempt(number, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(1, 16))
def test_three_hundred_networks_answer_as_in_the_engine(part: int, tmp_path: Path) -> None:
    for number in range(100 * part, 100 * part + 20):
        (tmp_path / str(number)).mkdir()
        assert attempt(number, tmp_path / str(number)), number


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_no_network_reads_or_writes_beside_its_memory(part: int, tmp_path: Path) -> None:
    for number in range(5 * part, 5 * part + 5):
        folder = tmp_path / str(number)
        folder.mkdir()
        case = draw_case(random.Random(number), more=0)
        made = exported(case, folder, TARGETS[number % 2])
        path = program(made.exported, folder / "c", *FLAGS, *_SANITIZERS)
        (numbers,) = case.feeds.values()
        answers = answers_of(made.exported, path, numbers[np.newaxis])
        _, expected = made.run(case.feeds)
        (wanted,) = expected.values()
        np.testing.assert_allclose(answers[0], wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_every_operator_is_drawn() -> None:
    """A kind whose nodes ONNX Runtime refuses would be drawn in vain."""
    drawn = {name for number in range(300) for name in draw_case(random.Random(number)).operators}
    # Those of other domains and on bytes come of compiling; the last two are in no operator set drawn.
    read = {name for name, record in OPERATORS.items() if record.read and name.isalnum()}
    plain = read - {"Upsample", "Swish"}
    assert drawn >= plain - _NOT_IN_C - {"QuantizeLinear", "DequantizeLinear", "QLinearConv"}
