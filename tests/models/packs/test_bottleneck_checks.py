"""Bottlenecks that a manifest cannot mean, one fault at a time."""

import shutil
from pathlib import Path

import onnx
import pytest

from models.compiler import compile_onnx
from models.errors import PackError
from models.initial.calibrate import filled
from models.packs.pack import Pack, open_pack
from models.packs.target import host_target
from models.zoo.builder import SkeletonBuilder
from tests.models.packs.documents import Document
from tests.models.packs.test_pack import edit, put
from tests.models.refusal import refuses

pytestmark = pytest.mark.skipif(host_target().block == 1, reason="no blocked layout here")

# Operators: 0 expands, 1 is depthwise, 2 makes means, 3 factors, 4 multiplies, 5 adds up. Row value 0 is
# the image, 1 what the bottleneck reads.


@pytest.fixture(scope="module")
def gated_pack(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    folder = tmp_path_factory.mktemp("gated")
    b = SkeletonBuilder("gated", 112)
    x = b.relu(b.conv(b.image, 16, 3, 2))
    y = b.relu(b.conv(x, 64, 1))
    y = b.relu(b.conv(y, 64, 3, groups=64))
    factors = b.sigmoid(b.conv(b.relu(b.conv(b.global_pool(y), 32, 1)), 64, 1))
    x = b.add(x, b.conv(b.mul(y, factors), 16, 1))
    onnx.save(filled(b.model(b.linear(b.flatten(b.global_pool(x)), 4)), seed=1), folder / "m.onnx")
    return open_pack(compile_onnx(folder / "m.onnx", folder / "m"))


@pytest.fixture
def gated_folder(gated_pack: Pack, tmp_path: Path) -> Path:
    return Path(shutil.copytree(gated_pack.folder, tmp_path / "gated" / "1"))


def test_it_is_as_the_cases_say(gated_pack: Pack) -> None:
    (item,) = gated_pack.manifest.bottlenecks
    kinds = [operator.kind for operator in item.operators]
    assert kinds == ["each", "each", "mean", "once", "each", "sum"]


@pytest.mark.parametrize(
    ("way", "value", "field", "reason"),
    [
        (("first_piece",), 99, "", "are out of range"),
        (("end_piece",), 99, "", "are out of range"),
        (("sizes",), [], "sizes", "[] of 64 channels"),
        (("sizes",), [24], "sizes", "[24] of 64 channels"),
        (("sizes",), [64], "sizes", "[64] of 64 channels"),
        (("channels",), 65, "channels", "65 do not divide"),
        (("channels",), 1 << 40, "channels", "make over 16384 groups"),
        (("output",), 99, "output", "99 is out of range"),
        (("output",), 1, "output", "its pieces do not write value"),
        (("operators", 5, "kind"), "each", "operators", "add nothing up"),
        (("operators",), [], "operators", "add nothing up"),
        (("operators", 0, "graphs"), [1], "operators.0.graphs", "1, not "),
        (("operators", 2, "graphs"), [99], "operators.2.graphs", "99 is out of range"),
        (("operators", 0, "shape"), [1, 32, 56, 56], "operators.0.shape", "of 64 channels"),
        (("operators", 0, "shape"), [1, 64, 0, 56], "operators.0.shape", "of 64 channels"),
        (("operators", 2, "shape"), [1, 64, 2, 1], "operators.2.shape", "of 64 channels"),
        (("operators", 5, "shape"), [1, 16, 56, 55], "output", "is not what is added up"),
        (("operators", 0, "inputs"), [], "operators.0.inputs", "are not those of 'each'"),
        (("operators", 5, "inputs", 1, "axis"), None, "operators.5.inputs", "those of 'sum'"),
        (("operators", 1, "inputs", 0, "made"), 1, "inputs.0.made", "1 does not run before"),
        (("operators", 1, "inputs", 0, "made"), None, "inputs.0", "not one of made"),
        (("operators", 1, "inputs", 0, "row_value"), 1, "inputs.0", "not one of made"),
        (("operators", 1, "inputs", 0, "axis"), None, "inputs.0.axis", "of what 'each' makes"),
        (("operators", 4, "inputs", 0, "made"), 3, "inputs.0.axis", "of what 'once' makes"),
        (("operators", 3, "inputs", 0, "made"), 1, "inputs.0.axis", "of what 'each' makes"),
        (("operators", 1, "inputs", 0, "window", "kernel"), 1, "inputs.0.window", "padding"),
        (("operators", 0, "inputs", 0, "window"), {"factor": 2}, "inputs.0.window", "56 rows"),
        (("operators", 0, "inputs", 0, "row_value"), 99, "inputs.0.row_value", "out of range"),
        (("operators", 0, "inputs", 0, "row_value"), 2, "inputs.0.row_value", "not there before"),
        (("operators", 0, "inputs", 0, "axis"), "channels", "inputs.0.row_value", "16 channels"),
        (("operators", 5, "inputs", -1, "row_value"), 0, "row_value", "cannot be added"),
        (("operators", 0, "inputs", 1, "weights", "index"), 99, "weights", "99 is no span"),
        (("operators", 0, "inputs", 1, "weights", "offset"), 1 << 20, "weights", "are outside"),
        (("operators", 5, "inputs", 1, "weights", "shape"), [64, 16, 1, 1], "weights", "inputs"),
    ],
)
def test_what_cannot_be_is_refused(
    way: tuple[str | int, ...], value: object, field: str, reason: str, gated_folder: Path
) -> None:
    path = edit(gated_folder, put("bottlenecks", 0, *way, value))
    with refuses(PackError, path, "bottlenecks.0", field, reason):
        open_pack(gated_folder)


@pytest.mark.parametrize("number", [2, 3])
def test_what_runs_once_is_made_of_what_groups_make(number: int, gated_folder: Path) -> None:
    def change(document: Document) -> None:
        inputs = document["bottlenecks"][0]["operators"][number]["inputs"]
        weights = document["bottlenecks"][0]["operators"][5]["inputs"][1]
        inputs[:] = [taken for taken in inputs if "made" not in taken] or [weights]

    path = edit(gated_folder, change)
    with refuses(PackError, path, f"bottlenecks.0.operators.{number}.inputs", "are not those of"):
        open_pack(gated_folder)


def test_together_they_stand_for_few_pieces(gated_folder: Path) -> None:
    def change(document: Document) -> None:
        document["bottlenecks"] *= 99

    with refuses(PackError, edit(gated_folder, change), "bottlenecks.", "pieces in all, of"):
        open_pack(gated_folder)
