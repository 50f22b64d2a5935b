"""Kernels have all that is named."""

from typing import get_args

import pytest

from models.network.activations import Activation, Arithmetic, Kind
from models.network.node import UnsuitedError
from pipeline.devices.cuda.operators.elements_and_pools import ARITHMETIC
from pipeline.devices.cuda.operators.launches import ACTIVATIONS, activation_arguments


def test_every_kind_has_a_kernel() -> None:
    assert set(ACTIVATIONS) == {"none", *get_args(Kind)}
    assert set(ARITHMETIC) == set(get_args(Arithmetic))
    with pytest.raises(UnsuitedError, match="no kernel has cosine"):
        activation_arguments(Activation("cosine"))  # type: ignore[arg-type]
