"""Operators on rows that a manifest cannot mean, one fault at a time; and what becomes of a crafted one."""

import shutil
from pathlib import Path

import onnx
import pytest

from models.compiler import compile_onnx
from models.errors import PackError
from models.packs.pack import Pack, open_pack
from models.packs.target import host_target
from models.zoo.builder import SkeletonBuilder
from pipeline.program.program import Program
from pipeline.program.region_plan import Region, RegionError, RowCut
from pipeline.program.regions import plan_region
from pipeline.program.row_network import RowNetwork
from tests.models.nets import NETS, filled, written
from tests.models.packs.documents import Document
from tests.models.packs.test_pack import Change, edit, put
from tests.models.refusal import refuses

pytestmark = pytest.mark.skipif(host_target().block == 1, reason="no blocked layout here")

# The pack's row operators: 0 is the first layer, in one piece; 1 to 4 are in four chunks each, with spans
# 2 to 5 and so on, 2 and 4 add a value. Row value 1 is the output of operator 0, ...


def reverse(document: Document) -> None:
    document["row_operators"][2:4] = document["row_operators"][3:1:-1]


_UNROLLED = {"pixel_bytes": 4608, "filters": 32, "segments": 16}


@pytest.mark.parametrize(
    ("way", "value", "field", "reason"),
    [
        (("graph",), 99, "graph", "99 is out of range"),
        (("inputs",), [], "inputs", "none"),
        (("inputs", 0, "row_value"), 99, "", "row value 99 is out of range"),
        (("inputs", 0, "row_value"), 3, "inputs.0.row_value", "3 is made later"),
        (("inputs", 0, "row_value"), 2, "inputs.0.row_value", "2 is made later"),
        (("output",), 99, "", "row value 99 is out of range"),
        (("output",), 1, "output", "1 is made twice"),
        (("output",), 4, "output", "its pieces do not write value 5"),
        (("first_piece",), 5, "", "pieces [5, 5) are out of range"),
        (("first_piece",), 0, "first_piece", "0: before 1"),
        (("end_piece",), 99, "", "pieces [1, 99) are out of range"),
        (("inputs", 0, "window", "stride"), 2, "inputs.0.window", "8 rows of 8"),
        (("inputs", 0, "window", "kernel"), 1, "inputs.0.window", "padding before a kernel of 1"),
        (("inputs", 0, "window", "factor"), 2, "inputs.0.window", "8 rows of 8"),
        (("inputs", 0, "window", "behind"), 0, "inputs.0.window", "8 rows of 8 with 0 behind"),
        (("inputs", 0, "fill"), "ones", "inputs.0.fill", "zero"),
        (("weights", 0, "index"), 99, "weights.0", "span 99 is no span"),
        (("weights", 0, "index"), 9, "weights.0", "span 9 is not one of its pieces'"),
        (("weights", 0, "index"), 3, "weights.0", "are outside span 3"),
        (("weights", 0, "offset"), 4096, "weights.0", "[4096, +147456) are outside span 2"),
        (("weights", 0, "kind"), "value", "weights.0", "value 2 is no span"),
        (("weights", 0, "shape"), [-1], "weights.0", "span 2 is no span"),
        (("unrolled",), _UNROLLED | {"filters": 1 << 32}, "unrolled", "more than any kernel"),
        (("unrolled",), _UNROLLED | {"pixel_bytes": 0}, "unrolled.pixel_bytes", "greater than 0"),
        (("in_place",), 1, "in_place", "1 is not like its output"),
        (("in_place",), 0, "in_place", "0 is not like its output"),
    ],
)
def test_operators_that_cannot_be_are_refused(
    way: tuple[str | int, ...], value: object, field: str, reason: str, pack_folder: Path
) -> None:
    path = edit(pack_folder, put("row_operators", 1, *way, value))
    with refuses(PackError, path, "row_operators.1", field, reason):
        open_pack(pack_folder)


def test_parts_of_parts_do_not_double_without_bound(pack_folder: Path) -> None:
    def change(document: Document) -> None:
        document["values"].append({"name": "v", "dtype": "float32", "shape": [1]})
        held = document["row_values"]
        first = len(held)
        for number in range(40):
            half = {"row_value": first + number - 1, "planes": 1 << number >> 1}
            held.append(
                {
                    "name": "v",
                    "dtype": "float32",
                    "shape": [1, 1 << number, 1, 1],
                    "value": len(document["values"]) - 1,
                    "planes": 1 << number,
                    "parts": [half, half] if number else [],
                }
            )

    path = edit(pack_folder, change)
    with refuses(PackError, path, "parts", "131072 in all, of 65536"):
        open_pack(pack_folder)


@pytest.mark.parametrize(
    ("change", "field", "reason"),
    [
        (reverse, "row_operators.3.first_piece", "5: before 13"),
        (
            put("row_values", 2, "shape", [2, 32, 8, 8]),
            "row_values.2",
            "float32[2, 32, 8, 8] is not",
        ),
        (put("row_values", 2, "shape", [1, 64, 64]), "row_values.2", "float32[1, 64, 64] is not"),
        (put("row_values", 2, "shape", [1, 64, 0, 8]), "row_values.2", "is not float32[1"),
        (put("row_values", 2, "dtype", "int32"), "row_values.2", "int32[1, 64, 8, 8] is not"),
        (put("row_values", 2, "planes", 5), "row_values.2.planes", "5 do not divide 64 channels"),
        (put("row_values", 2, "value", 99), "row_values.2.value", "99 is out of range"),
        (put("row_values", 6, "value", 2), "row_values.6.value", "2 does not hold it"),
        (put("row_values", 2, "value", 0), "row_operators.1.output", "do not write value 0"),
        (put("row_values", 2, "end_piece", 1), "row_values.2.parts", "none, but pieces copy them"),
        (put("row_values", 2, "end_piece", 99), "row_values.2", "[0, 99) are out of range"),
    ],
)
def test_values_that_cannot_be_are_refused(
    change: Change, field: str, reason: str, pack_folder: Path
) -> None:
    path = edit(pack_folder, change)
    with refuses(PackError, path, field, reason):
        open_pack(pack_folder)


#: Of 16 channels.
PLANES = 16 // host_target().block


@pytest.fixture(scope="module")
def joined_pack(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    """Row value 4 is 3 and 2, PLANES each; 6 is 4 and 5, twice as many each. 0 is no blocked one."""
    folder = tmp_path_factory.mktemp("joined")
    return open_pack(compile_onnx(written(NETS["concat"](), folder / "m.onnx"), folder / "m"))


@pytest.fixture
def joined_folder(joined_pack: Pack, tmp_path: Path) -> Path:
    return Path(shutil.copytree(joined_pack.folder, tmp_path / "joined" / "1"))


@pytest.mark.parametrize(
    ("change", "field", "reason"),
    [
        (
            put("row_values", 4, "parts", 0, "row_value", 4),
            "row_values.4.parts.0",
            "not one before",
        ),
        (
            put("row_values", 4, "parts", 0, "row_value", 6),
            "row_values.4.parts.0",
            "not one before",
        ),
        (put("row_values", 4, "parts", 0, "row_value", 0), "row_values.4.parts.0", "other rows"),
        (
            put("row_values", 4, "parts", 0, "first_plane", PLANES),
            "row_values.4.parts.0",
            f"range of {PLANES}",
        ),
        (
            put("row_values", 6, "parts", 0, "planes", 1),
            "row_values.6.parts",
            f"{2 * PLANES + 1} planes, not {4 * PLANES}",
        ),
        (put("row_operators", 3, "output", 6), "row_operators.3.output", "6 is put together"),
    ],
)
def test_parts_that_cannot_be_are_refused(
    change: Change, field: str, reason: str, joined_folder: Path
) -> None:
    path = edit(joined_folder, change)
    with refuses(PackError, path, field, reason):
        open_pack(joined_folder)


def test_what_the_compiler_writes_is_accepted(joined_folder: Path, pack_folder: Path) -> None:
    assert open_pack(joined_folder).manifest.row_operators
    assert open_pack(pack_folder).manifest.row_operators


def smaller(document: Document) -> None:
    """Let row value 2 lie in a value that is too small for it, and that nothing else writes."""
    document["values"].append({"name": "small", "dtype": "float32", "shape": [4]})
    document["row_values"][2]["value"] = len(document["values"]) - 1


def test_a_value_that_is_nowhere_whole_is_not_read_there(pack_folder: Path) -> None:
    edit(pack_folder, smaller)
    network = RowNetwork(Program.as_compiled(open_pack(pack_folder)))
    with pytest.raises(RegionError, match="nowhere whole"):
        plan_region(network, Region(5, 9, RowCut(2)))
    assert plan_region(network, Region(0, 9, RowCut(2))).strips


# Bottlenecks that a manifest cannot mean, one fault at a time.

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
        (("sizes",), [20], "sizes", "[20] of 64 channels"),
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
