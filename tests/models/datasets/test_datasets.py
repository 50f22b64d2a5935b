"""Data sets on disk: what is read of whole ones, and what is said of broken ones."""

import io
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from models.datasets import voc
from models.datasets.cifar10 import CLASSES, read_cifar10
from models.datasets.samples import DataError, SampleError, read_folder
from models.datasets.voc import parse_annotation, read_voc
from models.errors import ModelError
from tests.examples import examples, over
from tests.models.refusal import refuses


def _png(colour: tuple[int, int, int] = (255, 0, 0)) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (6, 4), colour).save(file, "PNG")
    return file.getvalue()


def _annotation(*boxes: tuple[str, int, int, int, int]) -> bytes:
    objects = "".join(
        f"<object><name>{name}</name><difficult>{int(name == 'hard')}</difficult><bndbox><xmin>{a}</xmin>"
        f"<ymin>{b}</ymin><xmax>{c}</xmax><ymax>{d}</ymax></bndbox></object>"
        for name, a, b, c, d in boxes
    )
    return f"<annotation>{objects}</annotation>".encode()


def _voc(folder: Path) -> Path:
    """Two whole pictures, one without a picture, one without an annotation."""
    for name in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (folder / "set" / name).mkdir(parents=True)
    root = folder / "set"
    (root / "Annotations/a.xml").write_bytes(_annotation(("RBC", 1, 1, 6, 4), ("hard", 2, 1, 3, 2)))
    (root / "Annotations/b.xml").write_bytes(_annotation())
    (root / "Annotations/c.xml").write_bytes(_annotation(("RBC", 1, 1, 6, 4)))
    for name in "abd":
        (root / f"JPEGImages/{name}.png").write_bytes(_png())
    (root / "ImageSets/Main/test.txt").write_text("a\nb\nc\nd\n")
    (root / "ImageSets/Main/train.txt").write_text("\ufeffb\n")  # as some editors save it
    return root


def _zipped(root: Path) -> Path:
    file = root.with_suffix(".zip")
    with zipfile.ZipFile(file, "w") as archive:
        for path in sorted(root.rglob("*")):
            archive.write(path, Path("BCCD") / path.relative_to(root))
    return file


def test_folders_are_classes(tmp_path: Path) -> None:
    for name in ("dog", "cat"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.PNG").write_bytes(_png())
    (tmp_path / "cat" / "notes.txt").write_text("no picture")
    found = read_folder(tmp_path)
    assert found.classes == ("cat", "dog")
    assert [(sample.name, sample.label) for sample in found.samples()] == [
        ("cat/1.PNG", "cat"),
        ("dog/1.PNG", "dog"),
    ]
    assert next(found.pictures()).size == (6, 4)


@pytest.mark.parametrize(("count", "most", "chosen"), [
    (42, 8, [0, 5, 10, 15, 21, 26, 31, 36]), (3, 8, [0, 1, 2]), (3, None, [0, 1, 2]),
])  # fmt: skip
def test_so_many_pictures_are_taken(
    count: int, most: int | None, chosen: list[int], tmp_path: Path
) -> None:
    for number in range(count):
        (tmp_path / f"{number:02}.png").write_bytes(_png((number, 0, 0)))
    taken = read_folder(tmp_path).pictures(most)
    assert [np.asarray(picture)[0, 0, 0] for picture in taken] == chosen


def test_pictures_alone_have_no_class(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(_png())
    (sample,) = read_folder(tmp_path).samples()
    assert sample.label is None
    assert sample.marks is None


@over(
    "files, said",
    [
        ([], "no pictures"),
        (["readme.txt"], "no pictures"),
        (["a.png", "cat/b.png"], "beside folders"),
    ],
)
def test_folders_that_are_no_data_set(files: list[str], said: str, tmp_path: Path) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(_png())
    with pytest.raises(DataError, match=said):
        read_folder(tmp_path)
    with pytest.raises(DataError, match="no such folder"):
        read_folder(tmp_path / "missing")


@over("data", [b"", b"nonsense", _png()[:40]], ids=["empty", "text", "cut"])
def test_broken_pictures_are_named(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(data)
    (sample,) = read_folder(tmp_path).samples()
    with pytest.raises(SampleError, match=r"broken\.png"):
        sample.open()


def test_cifar10_of_both_kinds(tmp_path: Path) -> None:
    planes = np.arange(3 * 32 * 32, dtype=np.uint8)
    (tmp_path / "test_batch.bin").write_bytes(b"\x03" + planes.tobytes() + b"\x09" + bytes(3072))
    found = read_cifar10(tmp_path)
    samples = list(found.samples())
    assert [sample.label for sample in samples] == [CLASSES[3], CLASSES[9]]
    pixels = np.asarray(samples[0].open())
    np.testing.assert_array_equal(pixels.transpose(2, 0, 1).ravel(), planes)

    files = [_png(), _png((0, 0, 255))]
    offsets = np.cumsum([0, *map(len, files)])
    jpeg = np.frombuffer(b"".join(files), np.uint8)
    np.savez(tmp_path / "c.npz", test_jpeg=jpeg, test_offsets=offsets, test_labels=np.array([1, 0]))
    samples = list(read_cifar10(tmp_path / "c.npz").samples())
    assert [sample.label for sample in samples] == [CLASSES[1], CLASSES[0]]
    assert np.asarray(samples[1].open())[0, 0].tolist() == [0, 0, 255]


def test_cifar10_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="pickles"):
        read_cifar10(tmp_path)
    (tmp_path / "test_batch.bin").write_bytes(bytes(3074))
    with pytest.raises(DataError, match="whole records"):
        read_cifar10(tmp_path)
    (tmp_path / "test_batch.bin").write_bytes(b"\x0a" + bytes(3072))
    with pytest.raises(DataError, match="labels"):
        read_cifar10(tmp_path)
    arrays: dict[str, Any] = {
        "test_jpeg": np.zeros(9, np.uint8),
        "test_labels": np.zeros(2, np.uint8),
    }
    for offsets, said in (([0, 4], "fit"), ([0, 9, 4], "ascending"), ([0, 4, 10], "ascending")):
        np.savez(tmp_path / "c.npz", **arrays, test_offsets=np.array(offsets))
        with pytest.raises(DataError, match=said):
            read_cifar10(tmp_path / "c.npz")
    np.savez(tmp_path / "c.npz", **arrays)
    with pytest.raises(DataError, match="test_offsets"):
        read_cifar10(tmp_path / "c.npz")
    with zipfile.ZipFile(tmp_path / "c.npz") as archive:  # it says that it holds more than it does
        entry = archive.getinfo("test_jpeg.npy")
    data = (tmp_path / "c.npz").read_bytes()
    sizes = struct.pack("<2L", entry.compress_size, entry.file_size)
    (tmp_path / "c.npz").write_bytes(
        data.replace(sizes, struct.pack("<2L", entry.compress_size, 3 << 30))
    )
    with pytest.raises(DataError, match=r"test_jpeg.npy: 3221225472 bytes, not CIFAR-10's"):
        read_cifar10(tmp_path / "c.npz")
    np.save(alone := io.BytesIO(), np.zeros(3))
    (tmp_path / "c.npz").write_bytes(alone.getvalue())
    with pytest.raises(DataError, match=r"not an \.npz"):
        read_cifar10(tmp_path / "c.npz")
    (tmp_path / "c.npz").write_bytes(b"no archive")
    with pytest.raises(DataError, match=r"not an \.npz"):
        read_cifar10(tmp_path / "c.npz")


@pytest.mark.parametrize("zipped", [False, True], ids=["folder", "zip"])
def test_voc_annotations(zipped: bool, tmp_path: Path) -> None:
    root = _voc(tmp_path)
    source = _zipped(root) if zipped else root
    found = read_voc(source)
    assert found.count == 4
    samples = {sample.name: sample for sample in found.samples()}
    marks = samples["a"].marks
    assert marks is not None
    red, hard = marks()
    assert (red.name, red.edges, red.difficult) == ("RBC", (0.0, 0.0, 6.0, 4.0), False)
    assert hard.difficult
    assert samples["a"].open().size == (6, 4)
    with pytest.raises(SampleError, match="no picture c"):
        samples["c"].open()
    missing = samples["d"].marks
    assert missing is not None
    with pytest.raises(SampleError, match=r"no annotation d\.xml"):
        missing()
    assert [sample.name for sample in read_voc(source, "train").samples()] == ["b"]
    assert [sample.name for sample in read_voc(source, "all").samples()] == ["a", "b", "c"]
    with pytest.raises(DataError, match="no split 'val'; it has test, train, all"):
        read_voc(source, "val")


@over(
    "text, said",
    [
        (b"", "not XML"),
        (b"<annotation>", "not XML"),
        (b'<!DOCTYPE a [<!ENTITY b "c">]><a/>', "document type"),
        ('<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>'.encode("utf-16"), "document type"),
        (_annotation(("a", 5, 1, 4, 2)), "object 0"),
        (b"<a><object><name>b</name></object></a>", "object 0: bndbox"),
        (_annotation(("", 1, 1, 2, 2)), "no name"),
    ],
)
def test_broken_annotations_are_named(text: bytes, said: str) -> None:
    with pytest.raises(SampleError, match=said) as caught:
        parse_annotation("x.xml", text)
    assert "x.xml" in str(caught.value)


@examples(25, many=500, deadline=None)
@given(st.binary(max_size=60), st.integers(0, 200), st.integers(0, 200))
def test_any_annotation_is_read_or_refused(junk: bytes, first: int, end: int) -> None:
    whole = _annotation(("RBC", 1, 1, 6, 4), ("WBC", 2, 2, 3, 3))
    try:
        marks = parse_annotation("x.xml", whole[:first] + junk + whole[min(first, end) :])
    except ModelError:
        return
    for mark in marks:
        assert mark.name
        assert mark.edges[0] < mark.edges[2]
        assert mark.edges[1] < mark.edges[3]


@pytest.mark.parametrize(
    ("change", "said"),
    [("cut", "cannot be read"), ("encoding", "neither stored nor deflated"), ("long", "more than")],
)
def test_broken_entries_of_a_zip_are_samples(
    change: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    how = zipfile.ZIP_LZMA if change == "encoding" else zipfile.ZIP_DEFLATED
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("Annotations/a.xml", b"<a/>")
        archive.writestr("JPEGImages/a.png", _png(), how)
        start = archive.getinfo("JPEGImages/a.png").header_offset + 30 + len("JPEGImages/a.png")
    if change == "cut":
        data = bytearray((tmp_path / "x.zip").read_bytes())
        data[start : start + 8] = b"\xff" * 8
        (tmp_path / "x.zip").write_bytes(data)
    if change == "long":
        monkeypatch.setattr(voc, "_MAX_FILE_BYTES", 20)
    (sample,) = read_voc(tmp_path / "x.zip", "all").samples()
    with pytest.raises(SampleError, match=said):
        sample.open()


def test_neither_folder_nor_zip(tmp_path: Path) -> None:
    (tmp_path / "x.zip").write_bytes(b"no")
    with pytest.raises(DataError, match="neither"):
        read_voc(tmp_path / "x.zip")
    with pytest.raises(DataError, match="no such"):
        read_voc(tmp_path / "y.zip")
    with pytest.raises(DataError, match="Annotations"):
        read_voc(tmp_path)


def test_all_pictures_that_cannot_be_used_are_counted(tmp_path: Path) -> None:
    """A link that leads nowhere is one of them."""
    for number in range(8):
        (tmp_path / f"{number}.png").write_bytes(_png() if number < 2 else b"no picture")
    (tmp_path / "8.png").symlink_to(tmp_path / "none")
    with refuses(SampleError, "7 of 9 pictures cannot be used", "2.png", "6.png", "; and 2 more"):
        read_folder(tmp_path).check_pictures()
