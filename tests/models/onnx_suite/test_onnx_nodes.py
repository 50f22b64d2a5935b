"""Every operator that a CNN uses, streamed: the answers of the onnx package's own node tests.

Where plain ONNX Runtime does not give the expected answer (tests/models/onnx_suite/node_cases.py says why),
a pack does what plain ONNX Runtime does; a later ONNX Runtime may do more.
"""

from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from models.compiler import CompileOptions
from models.errors import ModelError
from models.runtime.sessions import open_session, session_options
from pipeline.devices.base import KernelError
from tests.models.onnx_suite.node_cases import (
    ALIKE,
    LEFT_OUT,
    OPERATORS,
    RANDOM,
    TYPES,
    NodeCase,
    collect,
    collect_one,
)
from tests.models.streamed import compiled, same, streamed

Arrays = Mapping[str, NDArray[Any]]


@pytest.fixture(scope="module")
def cases() -> dict[str, list[NodeCase]]:
    return collect()


def plain(case: NodeCase) -> dict[str, NDArray[Any]] | None:
    """What ONNX Runtime gives without us, None where it gives nothing."""
    try:
        session = open_session(case.model.SerializeToString(), session_options(optimise=True))
        names = [port.name for port in session.get_outputs()]
        results = session.run(names, dict(case.inputs))
    except Exception:  # noqa: BLE001  its errors share no base class of their own
        return None
    return {name: np.asarray(result) for name, result in zip(names, results, strict=True)}


def through_a_pack(case: NodeCase, folder: Path) -> dict[str, NDArray[Any]]:
    source = folder / "m.onnx"
    source.write_bytes(case.model.SerializeToString())
    shapes = {name: array.shape for name, array in case.inputs.items() if array.shape}
    return streamed(
        compiled(source, folder, CompileOptions(shapes=shapes, force=True)), case.inputs
    )


def check(case: NodeCase, folder: Path) -> None:
    if case.reason is None:
        same(through_a_pack(case, folder), case.expected, case.rtol, case.atol)
        return
    known = plain(case)
    if known is None or case.reason == TYPES:
        with pytest.raises((ModelError, KernelError)):
            through_a_pack(case, folder)
    elif case.reason != RANDOM:
        same(through_a_pack(case, folder), known, case.rtol, case.atol)


@pytest.mark.parametrize("operator", [name for name in OPERATORS if name not in ALIKE])
def test_first_case_of_an_operator(operator: str, tmp_path: Path) -> None:
    usual = [case for case in collect_one(operator) if case.reason is None]
    check(usual[0], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("operator", OPERATORS)
def test_every_case_of_an_operator(
    operator: str, cases: dict[str, list[NodeCase]], tmp_path: Path
) -> None:
    for case in cases[operator]:
        check(case, tmp_path)


@pytest.mark.slow
def test_what_is_left_out_exists(cases: dict[str, list[NodeCase]]) -> None:
    names = [case.name for found in cases.values() for case in found]
    for pattern in LEFT_OUT:
        assert any(fnmatch(name, pattern) for name in names), pattern
