"""What kernels are given by number is what their sources name."""

import re
from typing import get_args

import pytest

from models.network.activations import Activation, Arithmetic, Kind
from models.network.node import UnsuitedError
from pipeline.devices.cuda.operators.elements import ARITHMETIC
from pipeline.devices.cuda.operators.launches import ACTIVATIONS, activation_arguments
from tests.pipeline.devices.cuda.host.build import KERNELS


def enumerators(file: str, name: str) -> list[str]:
    """Return the names of an enumeration in a source, in order."""
    text = re.sub(r"//.*", "", (KERNELS / file).read_text())
    found = re.search(rf"enum class {name} {{(.*?)}}", text, re.DOTALL)
    assert found is not None
    return re.findall(r"\w+", found[1])


def test_activations_have_the_numbers_of_the_source() -> None:
    assert enumerators("headers/activation.cuh", "Activation") == ["none", *ACTIVATIONS]


def test_arithmetic_has_the_numbers_of_the_source() -> None:
    assert enumerators("elementwise.cu", "Arithmetic") == list(ARITHMETIC)


def test_every_kind_has_a_kernel() -> None:
    assert set(ACTIVATIONS) == set(get_args(Kind))
    assert set(ARITHMETIC) == set(get_args(Arithmetic))
    with pytest.raises(UnsuitedError, match="no kernel has cosine"):
        activation_arguments(Activation("cosine"))  # type: ignore[arg-type]
