"""What ``compile --store`` stores how, and what it refuses."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import numpy_helper

from models.compiler import CompileOptions, compile_onnx
from models.compiler.writing.storing import WholeNumbers, whole_numbers
from models.errors import CompileError, PackError
from models.packs.manifest import Manifest
from models.packs.names import Store
from models.packs.pack import Pack, open_pack
from models.packs.records.spans import Span
from models.packs.storing import read_span
from models.packs.target import named_target
from tests.examples import over
from tests.models.nets import CHUNK_BYTES, gemm, gemm_by_column, parsed, written
from tests.models.packs.test_pack import Change, edit, put

STORES: tuple[Store, ...] = ("fp16", "bf16", "int8", "lossless")
OPTIONS = CompileOptions(chunk_bytes=CHUNK_BYTES)


def stored(model: onnx.ModelProto, folder: Path, store: Store, warned: list[str]) -> Pack:
    folder.mkdir(exist_ok=True)
    source = written(model, folder / "net.onnx")
    options = replace(OPTIONS, store=store, warn=warned.append)
    return open_pack(compile_onnx(source, folder / store, options))


def encodings(span: Span) -> list[str]:
    return [] if span.stored is None else [part.encoding for part in span.stored.parts]


def with_weight(model: onnx.ModelProto, value: float) -> onnx.ModelProto:
    """Return ``model`` with one number of its weights changed."""
    weights = model.graph.initializer[0]
    array = numpy_helper.to_array(weights).copy()
    array.flat[3] = value
    weights.CopyFrom(numpy_helper.from_array(array, weights.name))
    return model


@pytest.mark.parametrize(("store", "ratio"), [("fp16", 0.6), ("bf16", 0.6), ("int8", 0.35)])
def test_weights_are_stored_small_and_vectors_as_they_are(
    store: Store, ratio: float, tiny_onnx: Path, tmp_path: Path
) -> None:
    pack = open_pack(compile_onnx(tiny_onnx, tmp_path / "net", replace(OPTIONS, store=store)))
    manifest = pack.manifest
    assert manifest.store == store
    assert not pack.model_path.exists()
    resident, *streamed = manifest.spans
    assert resident.resident
    assert encodings(resident) == ["bytes"]
    large = [span for span in streamed if span.length > 30_000]
    assert large
    assert sum(span.file_length for span in large) <= ratio * sum(span.length for span in large)


def test_fp32_lies_in_the_file_as_in_memory(tiny_pack: Pack) -> None:
    assert tiny_pack.model_path.exists()
    assert all(span.stored is None for span in tiny_pack.manifest.spans)


@pytest.mark.parametrize("model", [gemm, gemm_by_column])
def test_each_row_of_a_matrix_has_a_scale(model: object, tmp_path: Path) -> None:
    """A row of large numbers takes nothing from the accuracy of the others."""
    made: onnx.ModelProto = model()  # type: ignore[operator]
    weights = next(item for item in made.graph.initializer if len(item.dims) == 2)
    array = numpy_helper.to_array(weights).copy()
    axis = int(array.shape[0] == 256)
    np.moveaxis(array, axis, 0)[5] *= 1000
    weights.CopyFrom(numpy_helper.from_array(array, weights.name))
    packs = [stored(made, tmp_path / store, store, []) for store in ("int8", "lossless")]
    (one, other) = (
        np.concatenate([read_span(pack.weights_path, s) for s in pack.manifest.spans]).view("f4")
        for pack in packs
    )
    usual = np.abs(other)[np.abs(other) < 1].max()
    assert 0 < (np.abs(one - other) > usual / 127).sum() <= 256  # of one row


@over("value", [float("nan"), float("inf"), -float("inf")])
@over("store", ["fp16", "bf16", "int8"])
def test_weights_that_are_no_numbers_are_refused_by_name(
    value: float, store: Store, tmp_path: Path
) -> None:
    with pytest.raises(
        CompileError, match=r"weights 'w': 1 of 32768 are NaN or infinite: .* stored"
    ):
        stored(with_weight(gemm(), value), tmp_path, store, [])


def test_lossless_keeps_what_is_no_number(tmp_path: Path) -> None:
    warned: list[str] = []
    pack = stored(with_weight(gemm(), float("nan")), tmp_path, "lossless", warned)
    assert warned == ["weights 'w': 1 of 32768 are NaN or infinite"]
    found = [read_span(pack.weights_path, span).view("f4") for span in pack.manifest.spans]
    assert np.isnan(np.concatenate(found)).sum() == 1


def test_numbers_beyond_16_bits_keep_their_weights_as_they_are(tmp_path: Path) -> None:
    warned: list[str] = []
    pack = stored(with_weight(gemm(), 70000.0), tmp_path, "fp16", warned)
    assert {item for span in pack.manifest.spans for item in encodings(span)} == {
        "bytes",
        "float16",  # the chunks without that number
    }
    assert any(
        "stay float32: the largest number is 7e+04, out of range of fp16" in w for w in warned
    )


@pytest.mark.parametrize("store", ["fp16", "bf16", "int8"])
def test_numbers_too_small_for_16_bits_keep_their_weights_as_they_are(
    store: Store, tmp_path: Path
) -> None:
    """What follows may make them large again: below 1e-5 numbers of fp16 have hardly a digit."""
    model, warned = gemm(), list[str]()
    weights = model.graph.initializer[0]
    small = (numpy_helper.to_array(weights) * 1e-6).astype(np.float32)
    weights.CopyFrom(numpy_helper.from_array(small, weights.name))
    pack = stored(model, tmp_path, store, warned)
    assert pack.manifest.store == ("fp32" if store == "fp16" else store)
    assert any("out of range of fp16" in text for text in warned) == (store == "fp16")


def test_where_nothing_becomes_shorter_the_pack_is_that_of_fp32_and_compile_says_so(
    tmp_path: Path,
) -> None:
    model = parsed(  # a weight with two uses stays as it is
        "two (float[64,64] x) => (float[64,64] y) { z = MatMul(x, w)\n y = Add(z, w) }",
        {"w": (64, 64)},
    )
    warned: list[str] = []
    plain, asked = (stored(model, tmp_path, store, warned) for store in ("fp32", "int8"))
    assert asked.manifest.spans == plain.manifest.spans
    assert asked.manifest.store == "fp32"
    assert [text.partition(",")[0] for text in warned] == ["--store int8 makes no weights shorter"]


def test_a_gpu_reads_weights_as_they_are(tiny_onnx: Path, tmp_path: Path) -> None:
    options = replace(OPTIONS, store="int8", target=named_target("cuda-sm72"))
    with pytest.raises(CompileError, match="--store int8: a GPU reads weights as they are"):
        compile_onnx(tiny_onnx, tmp_path / "net", options)


# What a manifest says of them


@pytest.fixture(scope="module")
def made(tiny_onnx: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stored") / "net"
    return compile_onnx(tiny_onnx, folder, replace(OPTIONS, store="int8"))


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "net" / "1"))


def first_part(field: str, value: object) -> Change:
    return put("spans", 2, "stored", "parts", 0, field, value)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (put("spans", -1, "stored", None), "is not stored, after spans that are"),
        (put("spans", 2, "stored", "offset", 4096 * 7), "spans.2.stored: leaves a hole"),
        (put("spans", 2, "stored", "offset", 0), "spans.2: begins in weights.bin where"),
        (put("spans", 2, "stored", "length", 4097), "is not on 4096"),
        (put("spans", 2, "stored", "length", 1 << 30), "more than the"),
        (put("spans", 2, "stored", "length", 4096), "spans.2.stored.length: 4096, its parts take"),
        (first_part("encoding", "int4"), "encoding"),
        (first_part("offset", 2), "are no float32 numbers"),
        (first_part("length", 6), "are no float32 numbers"),
        (first_part("offset", 1 << 20), "behind the span"),
        (first_part("channels", 0), "channels: 0 are not whole blocks"),
        (first_part("block", 7), "are not whole blocks of 7"),
        (first_part("length", 4), "are not divided by"),
        (first_part("encoding", "planes"), "planes: 0, not 4"),
        (first_part("kept", -1), "kept"),
        (first_part("block", 1 << 32), "block"),
        (put("spans", 2, "stored", "parts", []), "are of none, more than padding"),
        (put("spans", -1, "length", 1 << 62), "are of none, more than padding"),
    ],
)
def test_what_cannot_be_is_named(folder: Path, change: Change, fault: str) -> None:
    edit(folder, change)
    with pytest.raises(PackError) as caught:
        open_pack(folder)
    assert fault in str(caught.value)


def test_a_manifest_is_read_as_it_was_written(folder: Path) -> None:
    manifest: Manifest = open_pack(folder).manifest
    assert manifest.expands
    assert all(span.stored is not None for span in manifest.spans)


# Whole numbers times a scale are found in floats, and in nothing else.


def again(found: WholeNumbers) -> NDArray[np.float32]:
    return found.integers.astype(np.float32) * found.scales[:, None]


@given(
    seed=st.integers(0, 2**32 - 1),
    numbers=st.integers(1, 300),
    largest=st.integers(1, 128),
    log_scale=st.floats(-60, 60),
)
def test_what_a_quantiser_makes_is_found_to_the_bit(
    seed: int, numbers: int, largest: int, log_scale: float
) -> None:
    generator = np.random.default_rng(seed)
    integers = generator.integers(-largest, min(largest, 127) + 1, (5, numbers)).astype(np.float32)
    integers[2] = 0
    scales = (2.0**log_scale * generator.uniform(0.5, 2, (5, 1))).astype(np.float32)
    rows = integers * scales
    found = whole_numbers(rows, exact=True)
    assert found is not None
    np.testing.assert_array_equal(again(found), rows)


@given(seed=st.integers(0, 2**32 - 1), numbers=st.integers(1, 300))
def test_a_factor_behind_the_scale_is_part_of_it(seed: int, numbers: int) -> None:
    generator = np.random.default_rng(seed)
    integers = generator.integers(-127, 128, (4, numbers)).astype(np.float32)
    scales, factors = generator.uniform(0.5, 2, (2, 4, 1)).astype(np.float32)
    rows = integers * scales * factors
    found = whole_numbers(rows, exact=False)
    assert found is not None
    np.testing.assert_allclose(again(found), rows, rtol=2.0**-22, atol=0)


def test_what_was_trained_in_floats_is_not_whole() -> None:
    rows = np.random.default_rng(3).standard_normal((16, 64)).astype(np.float32)
    assert whole_numbers(rows, exact=False) is None
    rows = np.rint(np.clip(rows * 40, -127, 127))
    assert whole_numbers(rows, exact=True) is not None
    rows[3, 50] += 0.4
    assert whole_numbers(rows, exact=False) is None


def test_more_than_eight_bits_and_no_numbers_are_not_whole() -> None:
    rows = np.arange(-200, 200, dtype=np.float32)[None]
    assert whole_numbers(rows, exact=True) is None
    rows[0, 5] = np.inf
    assert whole_numbers(rows, exact=True) is None
