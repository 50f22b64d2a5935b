"""Compiling takes time in proportion to the network: four times as long for four times as many layers."""

import cProfile
import pstats
from pathlib import Path

import onnx
import pytest

from models.compiler import compile_onnx
from tests.models.nets import parsed, written

#: Where a quadratic step would show; what ONNX Runtime does is not ours to bound.
_ROOMS = (
    "models/compiler/analysis",
    "models/compiler/cutting",
    "models/compiler/writing",
    "models/graphs",
)


def chain(layers: int) -> onnx.ModelProto:
    """Return ``layers`` of four nodes each: convolution, slopes, factors, pool."""
    lines, weights, value = [], dict[str, tuple[int, ...]](), "x"
    for n in range(layers):
        lines.append(f"c{n} = Conv<pads = [1, 1, 1, 1]>({value}, w{n}, b{n})")
        lines.append(f"p{n} = PRelu(c{n}, s{n})")
        lines.append(f"m{n} = Mul(p{n}, f{n})")
        lines.append(f"y{n} = MaxPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(m{n})")
        weights |= {
            f"w{n}": (16, 16, 3, 3),
            f"b{n}": (16,),
            f"s{n}": (16, 1, 1),
            f"f{n}": (1, 16, 1, 1),
        }
        value = f"y{n}"
    body = "\n".join(lines)
    return parsed(f"d (float[1,16,8,8] x) => (float[1,16,8,8] {value}) {{ {body} }}", weights)


def calls(layers: int, folder: Path) -> int:
    """Return how many functions the compiler calls for ``layers``."""
    source = written(chain(layers), folder / f"m{layers}.onnx")
    profile = cProfile.Profile()
    profile.runcall(compile_onnx, source, folder / f"m{layers}")
    statistics = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    return sum(
        count
        for (file, _, _), (_, count, *_) in statistics.items()
        if any(room in file for room in _ROOMS)
    )


@pytest.mark.parametrize("layers", [4, pytest.param(16, marks=pytest.mark.slow)])
def test_a_deep_chain_takes_what_its_layers_take(layers: int, tmp_path: Path) -> None:
    assert calls(4 * layers, tmp_path) < 1.5 * 4 * calls(layers, tmp_path)
