"""Manifests that say impossible things of resident pieces and of tensors without a known size."""

import shutil
from pathlib import Path

import pytest

from models.errors import PackError
from models.packs.pack import Pack, open_pack
from tests.models.compiler.test_resident import selection
from tests.models.nets import written
from tests.models.packs.documents import Document
from tests.models.packs.test_pack import Change, edit, put
from tests.models.refusal import refuses
from tests.models.streamed import compiled


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    """Output 1 and a value have an unknown dimension; one piece is resident."""
    folder = tmp_path_factory.mktemp("loose")
    return compiled(written(selection()[0], folder / "m.onnx"), folder)


@pytest.fixture
def folder(sound: Pack, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound.folder, tmp_path / "m" / "1"))


def resident_piece(document: Document) -> int:
    return next(i for i, piece in enumerate(document["pieces"]) if "resident" in piece)


def loose_operand(document: Document) -> Document:
    outputs = document["pieces"][resident_piece(document)]["outputs"]
    return next(operand for operand in outputs if -1 in operand["shape"])


def lie_inside(document: Document) -> None:
    document["values"][document["outputs"][1]["value"]]["parent"] = 0


def be_a_parent(document: Document) -> None:
    document["values"][0]["parent"] = document["outputs"][1]["value"]


def not_resident(document: Document) -> None:
    del document["pieces"][resident_piece(document)]["resident"]


def stream(document: Document) -> None:
    streaming = next(p for p in document["pieces"] if p.get("span") is not None)
    streaming["resident"] = {"nodes": [], "operators": [], "weight_bytes": 0, "reasons": []}


def other_shape(document: Document) -> None:
    loose_operand(document)["shape"] = [-1, 2]


def elsewhere(document: Document) -> None:
    loose_operand(document)["offset"] = 0
    loose_operand(document)["index"] = 0


def never_made(document: Document) -> None:
    outputs = document["pieces"][resident_piece(document)]["outputs"]
    outputs.remove(loose_operand(document))


def too_early(document: Document) -> None:
    """The resident piece reads what it makes."""
    piece = document["pieces"][resident_piece(document)]
    piece["inputs"].append(loose_operand(document))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lie_inside, ["values.", "lies nowhere"]),
        (be_a_parent, ["values.0"]),
        (not_resident, ["only a resident piece"]),
        (stream, ["a resident piece"]),
        (other_shape, ["does not hold it"]),
        (elsewhere, ["value 0", "does not hold it"]),
        (never_made, ["outputs.1.value", "never made"]),
        (too_early, ["pieces.", "before it is made"]),
        (put("inputs", 0, "shape", [1, -1]), ["inputs.0"]),
        (put("inputs", 0, "dtype", "bytes"), ["inputs.0.value"]),
        (put("inputs", 0, "shape", [1, -2]), ["inputs.0.shape.1"]),
    ],
)
def test_impossible_loose_tensors_are_refused(
    change: Change, words: list[str], folder: Path
) -> None:
    open_pack(folder)
    path = edit(folder, change)
    with refuses(PackError, path, *words):
        open_pack(folder)


def test_loose_arrays_take_nothing_of_a_plan(sound: Pack) -> None:
    (value,) = [value for value in sound.manifest.values if value.is_loose]
    assert value.n_bytes == 0
    assert value.shape == (2, -1)
