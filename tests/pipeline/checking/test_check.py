"""The check of a compiled pack: it agrees with ONNX Runtime, or there is no pack."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from models.compiler import CompileOptions, compile_onnx
from models.errors import CompileError
from models.images.preprocess import Preprocess
from models.packs.pack import Pack, read_pack
from pipeline.checking.check import Reference, check_pack
from pipeline.checking.compare import difference, largest_error
from pipeline.checking.comparison import Tolerance
from pipeline.checking.trials import Free, Trials
from pipeline.devices.cpu import CpuDevice
from tests.examples import over
from tests.models.compiler.test_resident import branches, loop, selection, strings
from tests.models.nets import gemm, parsed, residual, written
from tests.models.refusal import refuses


def quick(pack: Pack, free: Free | None = None) -> Trials:
    return Trials(pack, CpuDevice(), "quick", free=free)


def checked(
    model: onnx.ModelProto,
    folder: Path,
    damage: Callable[[Path], None] = lambda folder: None,
    on_device: bool = True,
    free_bytes: int | None = None,
) -> list[str]:
    """Compile ``model`` with the check, after ``damage`` to the pack; return its notes."""
    source = written(model, folder / "m.onnx")
    notes: list[str] = []

    def accept(pack: Path, reference: Path) -> None:
        damage(pack)
        opened = read_pack(pack)
        trials = quick(opened, lambda: free_bytes) if on_device else None
        notes.extend(check_pack(opened, Reference(reference, source), trials))

    compile_onnx(source, folder / "r" / "m", CompileOptions(accept=accept))
    return notes


def no_pack(folder: Path) -> bool:
    return not (folder / "r" / "m").exists()


@pytest.mark.parametrize(
    "make",
    [
        residual,
        gemm,
        *((lambda case=case: case()[0]) for case in (branches, loop, selection, strings)),
    ],
)
def test_sound_models_pass_without_a_note(
    make: Callable[[], onnx.ModelProto], tmp_path: Path
) -> None:
    assert checked(make(), tmp_path) == []
    assert isinstance(read_pack(tmp_path / "r" / "m"), Pack)


def _other_weights(pack: Path) -> None:
    """Scale the weights of the pack: what a wrong compiler could do."""
    _scale_weights(pack, 1.01)


def _scale_weights(pack: Path, factor: float) -> None:
    """Scale the weights of ``pack``; checksums are made anew."""
    from models.packs.manifest import checksum, write_manifest

    file = pack / "weights.bin"
    numbers = np.fromfile(file, np.float32) * np.float32(factor)
    numbers.tofile(file)
    manifest = read_pack(pack).manifest
    data = file.read_bytes()
    spans = tuple(
        replace(span, checksum=checksum(data[span.offset : span.offset + span.length]))
        for span in manifest.spans
    )
    write_manifest(replace(manifest, spans=spans), pack / "manifest.json")


def test_another_answer_is_refused_with_output_and_distance(tmp_path: Path) -> None:
    with refuses(CompileError, tmp_path / "m.onnx", "output 'y' is off by", "--no-check"):
        checked(gemm(), tmp_path, _other_weights)
    assert no_pack(tmp_path)


def test_a_run_for_which_there_is_no_memory_is_refused_before(tmp_path: Path) -> None:
    with pytest.raises(MemoryError, match=r"m\.onnx: .* are free; nothing .* --no-check"):
        checked(residual(), tmp_path, free_bytes=16 << 20)
    assert no_pack(tmp_path)
    assert checked(residual(), tmp_path, free_bytes=64 << 20) == []


def test_without_the_device_only_the_source_is_run(tmp_path: Path) -> None:
    assert checked(gemm(), tmp_path, _other_weights, on_device=False) == []


def _with_indices(*values: int) -> onnx.ModelProto:
    model = parsed("g (float[3,4] x) => (float y) { y = Gather(x, i) }")
    array = np.array(values, np.int64)
    model.graph.initializer.append(numpy_helper.from_array(array, "i"))
    model.graph.node[0].name = "picks"
    return model


@pytest.mark.parametrize("on_device", [True, False])
def test_what_onnx_runtime_cannot_run_is_refused_with_its_reason(
    on_device: bool, tmp_path: Path
) -> None:
    with refuses(CompileError, tmp_path / "m.onnx", "Gather", "'picks'", "idx=5"):
        checked(_with_indices(0, 5), tmp_path, on_device=on_device)
    assert no_pack(tmp_path)


def test_inputs_that_must_be_sensible_are_found(tmp_path: Path) -> None:
    """A scale is no normal number: some kind of input is one that ONNX Runtime takes."""
    model = parsed(
        """s (float[1,2,3,3] x, float[4] scales) => (float[1,2,3,3] y, float z)
        <float top = {4}> {
            y = Relu(x)
            limited = Min(scales, top)
            z = Resize<mode="nearest">(x, , limited)
        }"""
    )
    assert checked(model, tmp_path) == []


def test_random_numbers_are_not_compared(tmp_path: Path) -> None:
    model = parsed("r (float[4] x) => (float[4] y) { n = RandomNormalLike(x)\n y = Add(x, n) }")
    model.graph.node[0].name = "noise"
    (note,) = checked(model, tmp_path)
    assert "not compared" in note
    assert "'noise' (RandomNormalLike)" in note


def test_answers_that_are_not_numbers_are_said(tmp_path: Path) -> None:
    model = parsed("n (float[4] x) => (float[4] y) { r = Sub(x, x)\n y = Div(r, r) }")
    (note,) = checked(model, tmp_path)
    assert "'y' has NaN" in note


FLOATS = functools.partial(np.array, dtype=np.float32)


@over(
    "got, expected, words",
    [
        (FLOATS([1, 2]), FLOATS([1, 2.0001]), ""),
        (FLOATS([1, 2]), FLOATS([1, 2.001]), "off by 0.001, where its largest value is 2"),
        (FLOATS([0, 100]), FLOATS([0.001, 100]), ""),
        (FLOATS([1e-8, 0]), FLOATS([0, 0]), ""),
        (FLOATS([np.nan, 1]), FLOATS([np.nan, 1]), ""),
        (FLOATS([np.inf, 1]), FLOATS([-np.inf, 1]), "other NaN or infinite"),
        (FLOATS([1, np.nan]), FLOATS([np.nan, 1]), "NaN"),
        (FLOATS([1, np.inf]), FLOATS([1, 1]), "NaN or infinite"),
        (FLOATS([1]), FLOATS([1, 1]), "is float32[1], not float32[2]"),
        (FLOATS([1]), np.array([1]), "is float32[1], not int64[1]"),
        (np.array([1, 2]), np.array([1, 3]), "differs in 1 of 2 values"),
        (np.array([True]), np.array([False]), "differs in 1 of 1"),
        (np.array(["a", "b"], object), np.array(["a", "c"], object), "differs in 1 of 2"),
        (np.array([7], np.uint8), np.array([8], np.uint8), "differs in 1 of 1"),
        (FLOATS([]), FLOATS([]), ""),
    ],
)
def test_what_counts_as_the_same(got: np.ndarray, expected: np.ndarray, words: str) -> None:
    fault = difference({"y": got}, {"y": expected}, Tolerance(1e-4))
    assert (words in fault) if words else not fault, fault


@pytest.mark.filterwarnings("error")
@over(
    "got, expected",
    [
        (FLOATS([np.inf, 1]), FLOATS([np.inf, 1])),
        (FLOATS([np.nan, -np.inf]), FLOATS([np.nan, -np.inf])),
        (np.array([1e308]), np.array([-1e308])),
        (FLOATS([]), FLOATS([])),
    ],
)
def test_comparing_warns_of_nothing(got: np.ndarray, expected: np.ndarray) -> None:
    difference({"y": got}, {"y": expected}, Tolerance(1e-4))
    assert largest_error({"y": got}, {"y": expected}) in (0, np.inf)


@dataclass(frozen=True)
class Unsure(Reference):
    """A reference whose optimised answer is ``off`` by a part of the largest value of the other."""

    off: float = 0.0

    def answer(self, inputs: Mapping[str, np.ndarray], optimise: bool) -> Mapping[str, np.ndarray]:
        found = super().answer(inputs, optimise)
        return {name: self._other(array) if optimise else array for name, array in found.items()}

    def _other(self, array: np.ndarray) -> np.ndarray:
        return array * np.float32(1 + self.off) if array.dtype.kind == "f" else array + 1


def unsure(model: onnx.ModelProto, folder: Path, off: float, more: float) -> list[str]:
    """Return the notes of a pack whose answers are off by ``more``, where ONNX Runtime's are by ``off``."""
    source = written(model, folder / "m.onnx")
    notes: list[str] = []

    def accept(pack: Path, reference: Path) -> None:
        _scale_weights(pack, 1 + more)
        opened = read_pack(pack)
        notes.extend(check_pack(opened, Unsure(reference, source, off), quick(opened)))

    compile_onnx(source, folder / "r" / "m", CompileOptions(accept=accept))
    return notes


def linear() -> onnx.ModelProto:
    return parsed("g (float[1,64] x) => (float y) { y = Gemm<transB=1>(x, w) }", {"w": (32, 64)})


@pytest.mark.parametrize(("off", "more"), [(0.01, 0.004), (0.01, -0.008), (0.1, 0.05)])
def test_what_lies_as_near_as_onnx_runtime_to_itself_is_compared(
    off: float, more: float, tmp_path: Path
) -> None:
    assert unsure(linear(), tmp_path, off, more) == []


@pytest.mark.parametrize(("off", "more"), [(0.002, -0.1), (0.01, 0.2)])
def test_what_is_many_times_as_far_off_is_refused(off: float, more: float, tmp_path: Path) -> None:
    with refuses(
        CompileError, tmp_path / "m.onnx", "output 'y' is off by", "ONNX Runtime with and"
    ):
        unsure(linear(), tmp_path, off, more)
    assert no_pack(tmp_path)


@pytest.mark.parametrize(("off", "more"), [(0.01, -0.08), (0.9, 0.2)])
def test_what_onnx_runtime_leaves_open_is_said_with_its_distance(
    off: float, more: float, tmp_path: Path
) -> None:
    (note,) = unsure(linear(), tmp_path, off, more)
    assert "not compared: ONNX Runtime itself answers otherwise" in note
    assert "output 'y' is off by" in note


def test_floats_within_the_tolerance_are_not_refused_since_integers_are_open(
    tmp_path: Path,
) -> None:
    """ONNX Runtime's floats hardly differ; another integer says nothing of how far floats may be off."""
    model = parsed(
        """g (float[1,64] x) => (float y, int32 n) {
            y = Gemm<transB=1>(x, w)
            many = Constant<value_float=1e6>()
            scaled = Mul(y, many)
            n = Cast<to=6>(scaled)
        }""",
        {"w": (32, 64)},
    )
    (note,) = unsure(model, tmp_path, 1e-7, 1e-6)
    assert "not compared: ONNX Runtime itself answers otherwise" in note


def test_a_network_of_roundings_is_not_called_wrong(tmp_path: Path) -> None:
    """Forty quantisers, each with a step of a third of what it sees, amplify the last digit of a sum."""
    generator = np.random.default_rng(0)
    nodes, initializers, x = [], [], "x"
    for name, array in (
        ("s", FLOATS(0.03)),
        ("z", np.uint8(128)),
        ("ws", FLOATS(0.0016)),
        ("wz", np.int8(0)),
    ):
        initializers.append(numpy_helper.from_array(np.asarray(array), name))
    for n in range(40):
        weights = generator.integers(-127, 127, (16, 16, 3, 3)).astype(np.int8)
        initializers.append(numpy_helper.from_array(weights, f"w{n}"))
        nodes += [
            helper.make_node("QuantizeLinear", [x, "s", "z"], [f"q{n}"]),
            helper.make_node("DequantizeLinear", [f"q{n}", "s", "z"], [f"d{n}"]),
            helper.make_node("DequantizeLinear", [f"w{n}", "ws", "wz"], [f"f{n}"]),
            helper.make_node("Conv", [f"d{n}", f"f{n}"], [f"c{n}"], pads=[1, 1, 1, 1]),
            helper.make_node("Relu", [f"c{n}"], [f"r{n}"]),
        ]
        x = f"r{n}"
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 16, 16, 16]) for name in ("x", x)
    ]
    graph = helper.make_graph(nodes, "deep", ports[:1], ports[1:], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert all("not compared" in note for note in checked(model, tmp_path))


def _pictures(colour: int) -> Callable[[], list[Image.Image]]:
    return lambda: [Image.new("RGB", (8, 8), (colour + n, colour, colour)) for n in range(3)]


def stored_on(pictures: Callable[[], list[Image.Image]] | None, folder: Path) -> str:
    """Return what is said of a network stored as int8."""
    model = parsed("c (float[1,3,8,8] x) => (float y) { y = Conv(x, w) }", {"w": (64, 3, 5, 5)})
    folder.mkdir()
    source = written(model, folder / "m.onnx")
    notes: list[str] = []

    def accept(pack: Path, reference: Path) -> None:
        opened, checked = read_pack(pack), Reference(reference, source)
        notes.extend(check_pack(opened, checked, quick(opened), pictures=pictures))

    options = CompileOptions(
        accept=accept, store="int8", preprocess=Preprocess(size=(8, 8), mean=(0.5,), std=(0.5,))
    )
    compile_onnx(source, folder / "r" / "m", options)
    (note,) = notes
    return note


def test_what_storing_costs_is_measured_on_pictures(tmp_path: Path) -> None:
    drawn = stored_on(None, tmp_path / "drawn")
    measured = stored_on(_pictures(200), tmp_path / "pictures")
    assert "on drawn numbers, not pictures (--calibrate DIR" in drawn
    assert "on 3 pictures of --calibrate" in measured
    assert drawn.split("by up to ")[1].split()[0] != measured.split("by up to ")[1].split()[0]


def test_quantised_integers_may_differ_by_one_step() -> None:
    one, two, three = (np.array([n], np.uint8) for n in (1, 2, 3))
    assert not difference({"y": one}, {"y": two}, Tolerance(1e-4, steps=1))
    assert difference({"y": one}, {"y": three}, Tolerance(1e-4, steps=1))
