"""The table of functions in C, and what C says of it; arrays of a fixed length."""

import subprocess
from contextlib import nullcontext

import pytest

from models.network.node import UnsuitedError
from models.network.operators.movement import strides_of
from pipeline.export_c.lowering.functions import _CALLED, BLOCKS, FUNCTIONS, PAIRS
from pipeline.export_c.lowering.movement import join_dimensions
from pipeline.export_c.writing.c_text import INCLUDES, blocks
from tests.examples import over
from tests.pipeline.export_c.compiled import needs_compiler


@needs_compiler
def test_functions_in_c_are_those_of_the_table() -> None:
    """All blocks compile in their order, and each function of a kind is what its caller takes."""
    includes = "".join(f"#include <{name}>\n" for name in ("stddef.h", "stdint.h", *INCLUDES))
    lists = "each of_one[] = {%s};\npairwise of_two[] = {%s};\n"
    text = includes + "\n\n".join(block.text for block in blocks().values()) + "\n"
    text += lists % (", ".join(FUNCTIONS.values()), ", ".join(PAIRS.values()))
    command = ["cc", "-std=c99", "-Wall", "-Werror", "-Wno-unused-function", "-fsyntax-only"]
    done = subprocess.run(
        [*command, "-xc", "-"], input=text, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert len(blocks()) == sum(map(len, BLOCKS.values()))
    assert {*_CALLED.values()} <= {*FUNCTIONS.values(), *PAIRS.values()}


@over("count", [6, 7])
def test_as_many_dimensions_as_structures_in_c_have(count: int) -> None:
    shape = (2,) * count
    strides = strides_of(shape)[::-1]  # none lies with the next one
    with nullcontext() if count == 6 else pytest.raises(UnsuitedError, match="7 dimensions"):
        assert join_dimensions(shape, [strides]) == (shape, [strides])
