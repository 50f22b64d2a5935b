"""Quantised layers that a manifest cannot mean, one fault at a time."""

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from PIL import Image

from models.compiler import CompileOptions
from models.errors import PackError
from models.images.preprocess import Preprocess
from models.network.operators.quantised import QuantisedAverage, QuantisedTask
from models.packs.pack import Pack, open_pack, read_pack
from pipeline.devices.cpu import CpuDevice
from pipeline.program.prepare import prepare
from tests.examples import examples
from tests.fuzz.pack import attempt
from tests.models.nets import parsed, written
from tests.models.packs.documents import Document, read_document, write_document
from tests.models.packs.test_manifest import MUTATIONS, mutate
from tests.models.packs.test_pack import edit, put
from tests.models.refusal import refuses
from tests.models.streamed import compiled

SIZE = 32
RECIPE = Preprocess(size=(SIZE, SIZE), mean=(128.0,), std=(64.0,))

# What the pieces of ``quantised_pack`` are, by the name of a test's parameter.
STEM, MAXIMA, AROUND, JOINED, AVERAGE, PRODUCT = range(6)


def _pictures() -> Iterator[Image.Image]:
    generator = np.random.default_rng(0)
    for _ in range(3):
        yield Image.fromarray(generator.integers(0, 256, (SIZE, SIZE, 3)).astype(np.uint8))


@pytest.fixture(scope="module")
def quantised_pack(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    """A pack of all that there is: see the numbers above."""
    model = parsed(
        f"""g (float[1,3,{SIZE},{SIZE}] x) => (float[1,5] y) {{
            s = Conv<strides=[2,2],pads=[1,1,1,1]>(x, ws)
            ac = Conv<pads=[1,1,1,1]>(s, wa)
            ap = MaxPool<kernel_shape=[2,2], strides=[2,2]>(ac)
            a = LeakyRelu<alpha=0.1>(ap)
            b = Conv(a, wb)
            br = Relu(b)
            c = Conv<pads=[1,1,1,1],group=96>(br, wc)
            cr = Relu(c)
            d = Conv(cr, wd)
            e = Add(d, a)
            h = Concat<axis=1>(e, a)
            k = Conv(h, wk)
            m = GlobalAveragePool(k)
            v = Flatten(m)
            y = Gemm<transB=1>(v, wg)
        }}""",
        {
            "ws": (16, 3, 3, 3),
            "wa": (32, 16, 3, 3),
            "wb": (96, 32, 1, 1),
            "wc": (96, 1, 3, 3),
            "wd": (32, 96, 1, 1),
            "wk": (32, 64, 1, 1),
            "wg": (5, 32),
        },
    )
    folder = tmp_path_factory.mktemp("quantised")
    options = CompileOptions(preprocess=RECIPE, calibrate=_pictures)
    return compiled(written(model, folder / "m.onnx"), folder, options)


@pytest.fixture
def folder(quantised_pack: Pack, tmp_path: Path) -> Path:
    return Path(shutil.copytree(quantised_pack.folder, tmp_path / "quantised" / "1"))


def test_it_is_as_the_cases_say(quantised_pack: Pack) -> None:
    manifest = quantised_pack.manifest
    tasks = [task for task in manifest.quantised if isinstance(task, QuantisedTask)]
    assert isinstance(manifest.quantised[AVERAGE], QuantisedAverage)
    assert [len(task.layers) for task in tasks] == [1, 1, 3, 1, 1]
    assert [task.rectangle is not None for task in tasks] == [True, *[False] * 4]
    assert [task.pool is not None for task in tasks] == [False, True, *[False] * 3]
    assert [task.joined is not None for task in tasks] == [*[False] * 3, True, False]
    assert [piece.quantised for piece in manifest.pieces[:5]] == [0, 1, 2, 3, 4]


LAYER = ("layers", 0)
AXIS = (*LAYER, "windows", "axes", 0)


@pytest.mark.parametrize(
    ("task", "way", "value", "reason"),
    [
        (STEM, ("layers",), [], "layers: 0, of 3 at most"),
        (STEM, (*LAYER, "channels"), 1 << 30, "layers.0: 1073741824 channels to 16, of 1048576"),
        (STEM, (*LAYER, "filters"), 1 << 30, "layers.0: 3 channels to 1073741824"),
        (STEM, (*LAYER, "depthwise"), True, "layers.0: depthwise, 3 channels to 16"),
        (STEM, (*LAYER, "by_inputs"), True, "layers.0: weights by inputs with a window"),
        (STEM, (*AXIS, "stride"), 1 << 32, "layers.0: a window of 3 on 32"),
        (STEM, (*AXIS, "dilation"), 1 << 30, "layers.0: a window of 2147483649 on 32"),
        (STEM, (*AXIS, "before"), -5, "layers.0: a window of 3 on 32"),
        (STEM, (*AXIS, "before"), (1 << 32) - 5, "layers.0: a window of 3 on 32"),
        (STEM, (*AXIS, "behind"), -1, "layers.0: a window of 3 on 32"),
        (STEM, (*AXIS, "factor"), 2, "layers.0: a window of 3 on 32"),
        (STEM, (*LAYER, "windows", "size"), [32, 0], "layers.0: a window of 3 on 0"),
        (STEM, (*LAYER, "windows", "size"), [32], "layers.0: windows not over rows and columns"),
        (STEM, (*LAYER, "windows", "result"), [17, 16], "that make [17, 16], not [16, 16]"),
        (STEM, (*LAYER, "windows", "beyond"), [1, 0], "that make [16, 16], not [16, 16]"),
        (STEM, ("source",), 1, "source: a request gives the first input"),
        (STEM, ("rectangle", "made", "signed"), True, "bytes that are signed where they"),
        (MAXIMA, ("pool", "size"), [16, 15], "pool: of something else"),
        (MAXIMA, ("pool", "axes", 1, "before"), 2, "pool: a window that may have no pixel"),
        (MAXIMA, ("pool", "axes", 1, "dilation"), 2, "pool: a window that may have no pixel"),
        (MAXIMA, ("pool", "result"), [8, 9], "pool: windows that make [8, 9], not [8, 8]"),
        (AROUND, ("layers", 1, "windows", "size"), [8, 9], "layers.1: windows that make"),
        (AROUND, ("layers", 2, "channels"), 95, "layers.2: it does not read what the one before"),
        (AROUND, ("layers", 1, "depthwise"), False, "layers: not one, nor around a depthwise"),
        (AROUND, ("layers", 2, "given", "signed"), True, "bytes that are signed where they"),
        (AROUND, ("table",), {"values": 3}, "layers: a depthwise one with what only a layer alone"),
        (AROUND, ("addition", "first", "signed"), True, "bytes that are signed where they"),
        (JOINED, ("joined", "parts"), [], "joined: 0 parts, of 8 at most"),
        (JOINED, ("joined", "parts", 0, "channels"), 31, "joined: not 64 channels"),
        (JOINED, ("joined", "parts", 0, "source"), 1, "source: not the first part"),
        (JOINED, ("joined", "made", "signed"), True, "bytes that are signed where they"),
        (JOINED, ("rectangle",), {"made": {"scale": 1, "zero": 2}}, "and no rectangle"),
        (AVERAGE, ("pixels",), 1 << 30, "1073741824 channels or pixels, of 1048576 at most"),
    ],
)
def test_a_task_that_no_kernel_computes_is_refused(
    task: int, way: tuple[str | int, ...], value: object, reason: str, folder: Path
) -> None:
    path = edit(folder, put("quantised", task, *way, value))
    with refuses(PackError, path, f"quantised.{task}: ", reason):
        open_pack(folder)


@pytest.mark.parametrize(
    ("task", "way", "what"),
    [
        (STEM, (*LAYER, "made", "scale"), "layers.0.made.scale"),
        (MAXIMA, ("table", "values"), "table.values"),
        (AROUND, ("addition", "other"), "addition.other"),
        (JOINED, ("joined", "parts", 1, "source"), "layers.0.weight.scale"),
        (AVERAGE, ("given", "scale"), "given.scale"),
    ],
)
def test_a_tensor_is_one_thing(
    task: int, way: tuple[str | int, ...], what: str, folder: Path
) -> None:
    """A request may hold the first input, and constants are as long as their reader says."""
    number = {AROUND: 1, JOINED: 2}.get(task, 0)
    path = edit(folder, put("quantised", task, *way, number))
    with refuses(PackError, path, f"quantised.{task}: {what}: {number} is something else, too"):
        open_pack(folder)


@pytest.mark.parametrize("field", ["kernel", "stride", "dilation", "factor"])
def test_a_window_of_nothing_is_refused(field: str, folder: Path) -> None:
    path = edit(folder, put("quantised", STEM, *AXIS, field, 0))
    with refuses(PackError, path, f"quantised.{STEM}", f"windows.axes.0.{field}"):
        open_pack(folder)


def test_a_layer_behind_a_depthwise_one_has_no_window(folder: Path) -> None:
    def change(document: Document) -> None:
        document["quantised"][AROUND]["layers"][2]["windows"]["axes"][0] = {
            "kernel": 3,
            "before": 1,
            "behind": 1,
        }

    path = edit(folder, change)
    with refuses(PackError, path, f"quantised.{AROUND}: layers.2: a window behind a depthwise"):
        open_pack(folder)


@pytest.mark.parametrize(
    ("task", "way", "value", "reason"),
    [
        (STEM, ("pieces", STEM, "quantised"), 99, "99 is out of range"),
        (STEM, ("pieces", STEM, "quantised"), AVERAGE, "its output is not uint8[1, 1, 1, 32]"),
        (STEM, ("pieces", STEM, "outputs", 0, "dtype"), "int8", "its output is not uint8"),
        (STEM, ("pieces", STEM, "outputs", 0, "shape"), [1], "its output is not uint8"),
        (STEM, ("quantised", STEM, "layers", 0, "channels"), 2, "its rectangle ends at"),
        (STEM, ("quantised", STEM, "rectangle", "first_row"), 1, "its rectangle ends at [33, 32]"),
        (STEM, ("pieces", STEM, "inputs"), [], "source: no planes of float32"),
        (STEM, ("quantised", STEM, "constants", 0), 1 << 40, "bytes outside of its graph"),
        (STEM, ("quantised", STEM, "constants"), [], "1 is out of range"),
        (STEM, ("quantised", STEM, "layers", 0, "bias"), 99, "layers.0.bias: 99 is out of range"),
        (MAXIMA, ("quantised", MAXIMA, "source"), 99, "source: 99 is out of range"),
        (MAXIMA, ("pieces", MAXIMA, "inputs", 1, "dtype"), "bool", "layers.0.weights: input 1 is"),
        (MAXIMA, ("pieces", MAXIMA, "inputs", 0, "shape"), [1, 16, 16, 15], "source: input 0 is"),
        (AVERAGE, ("quantised", AVERAGE, "pixels"), 65, "source: input 0 is not uint8, 2080"),
    ],
)
def test_a_piece_that_a_task_does_not_fit_is_refused(
    task: int, way: tuple[str | int, ...], value: object, reason: str, folder: Path
) -> None:
    path = edit(folder, put(*way, value))
    with refuses(PackError, path, f"pieces.{task}.quantised: ", reason):
        open_pack(folder)


def test_a_piece_with_two_results_is_refused(folder: Path) -> None:
    def change(document: Document) -> None:
        document["pieces"][STEM]["outputs"] *= 2

    path = edit(folder, change)
    with refuses(PackError, path, f"pieces.{STEM}.quantised: 2 outputs, not one"):
        open_pack(folder)


def test_a_resident_piece_is_refused(folder: Path) -> None:
    resident: dict[str, Any] = {"nodes": [], "operators": [], "weight_bytes": 0, "reasons": []}

    def change(document: Document) -> None:
        piece = next(each for each in document["pieces"] if "quantised" not in each)
        assert all(operand["kind"] == "value" for operand in piece["inputs"])
        piece |= {"resident": resident, "quantised": AVERAGE}

    with refuses(PackError, edit(folder, change), "quantised: a resident piece runs as it is"):
        open_pack(folder)


def test_no_chunks_are_quantised(folder: Path) -> None:
    def change(document: Document) -> None:
        number = next(
            at for at, piece in enumerate(document["pieces"]) if piece["span"] is not None
        )
        assert "quantised" in document["pieces"][number]
        joined = [{"graph": document["pieces"][number]["graph"], "n_chunks": 1}]
        document["alternatives"] = [
            {"first_piece": number, "end_piece": number + 1, "joined": joined}
        ]

    with refuses(
        PackError, edit(folder, change), "alternatives.0: quantised layers have no chunks"
    ):
        open_pack(folder)


def test_nor_has_a_gpu_kernels_for_them(folder: Path) -> None:
    path = edit(folder, put("target", "isa", "cuda-sm72"))
    with refuses(PackError, path, "quantised: a GPU has no kernels for them"):
        read_pack(folder)


@examples(8, many=3000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(mutations=MUTATIONS)
def test_mutated_tasks_are_refused_or_bound(
    mutations: list[tuple[str, int, Any]], quantised_pack: Pack, folder: Path
) -> None:
    document = read_document(quantised_pack.folder)
    for mutation in mutations:
        mutate(document["quantised"], *mutation)
    write_document(folder, document)
    if attempt(folder):
        with closing(CpuDevice(1)) as device:
            prepare(open_pack(folder), device)
