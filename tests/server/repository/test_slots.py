"""What of a model is served, and when it is another than before."""

import os
import shutil
from pathlib import Path

import pytest

from models.errors import PackError
from models.packs.pack import open_pack
from server.errors import NotFoundError
from server.repository.model_config import ModelConfigError
from server.repository.on_disk import is_still, labelled, slots
from tests.server.support import LABELS, Packs


@pytest.fixture
def root(packs: Packs, tmp_path: Path) -> Path:
    """A repository in which "tiny" has versions 1, 2, 10 and one that is being copied there."""
    model = tmp_path / "packs" / "tiny"
    for number in (1, 2, 10):
        shutil.copytree(packs.repository / "tiny" / "1", model / str(number))
    (model / "11").mkdir()
    (model / "11" / "weights.bin").write_bytes(b"half")
    return model.parent


def configured(root: Path, text: str) -> list[tuple[str, str]]:
    (root / "tiny" / "config.pbtxt").write_text(text)
    return [(slot.name, slot.folder.name) for slot in slots(root, "tiny")]


def test_versions_that_are_served(root: Path) -> None:
    assert configured(root, "") == [("tiny", "10")]
    assert configured(root, "version_policy { latest { num_versions: 2 } }") == [
        ("tiny/2", "2"),
        ("tiny/10", "10"),
    ]
    assert configured(root, "version_policy { specific { versions: 2 } }") == [("tiny", "2")]
    assert configured(root, "version_policy { specific { versions: [1, 3] } }") == [("tiny/1", "1")]
    every = configured(root, "version_policy { all { } }")
    assert every == [("tiny/1", "1"), ("tiny/2", "2"), ("tiny/10", "10")]
    with pytest.raises(PackError, match="version_policy"):
        configured(root, "version_policy { specific { versions: 7 } }")
    with pytest.raises(ModelConfigError, match="pbtxt:1"):
        configured(root, "name: 'twin'")


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../packs", ".git", "a/b", "none", "x" * 300, "a\0b"]
)
def test_what_is_no_model(root: Path, name: str) -> None:
    (root / ".git").mkdir()
    with pytest.raises(NotFoundError, match="not in the repository"):
        slots(root, name)


def test_a_folder_without_a_pack(root: Path) -> None:
    (root / "empty").mkdir()
    with pytest.raises(PackError, match="no pack in it"):
        slots(root, "empty")
    (root / "empty" / "3").mkdir()
    with pytest.raises(PackError, match="manifest"):
        slots(root, "empty")


def test_what_was_changed_is_seen(root: Path) -> None:
    def seen() -> object:
        (slot,) = slots(root, "tiny")
        return slot.seen

    pack = root / "tiny" / "10"
    before = seen()
    assert seen() == before
    (pack / "plans.json").write_text("{}")  # the service writes that itself
    assert seen() == before
    for name in ("weights.bin", "manifest.json", "pieces.bin"):
        os.utime(pack / name, ns=(1, 1))
        assert seen() != before
        before = seen()
    (slot,) = slots(root, "tiny")
    weights = pack / "weights.bin"
    assert is_still(slot.seen, weights)
    shutil.copy(weights, pack / "other")
    (pack / "other").replace(weights)
    assert not is_still(slot.seen, weights)
    weights.unlink()
    assert not is_still(slot.seen, weights)


def test_labels_of_the_configuration(root: Path) -> None:
    output = open_pack(root / "tiny" / "10").manifest.outputs[0].name
    text = f"output {{ name: '{output}' label_filename: 'other.txt' }} backend: 'x'"
    (root / "tiny" / "config.pbtxt").write_text(text)
    names = [f"other {number}" for number in range(len(LABELS))]
    (root / "tiny" / "other.txt").write_text("\n".join(names))
    (slot,) = slots(root, "tiny")
    pack = open_pack(slot.folder)
    named = labelled(pack, slot).manifest.classification
    assert named is not None
    assert list(named.labels) == names
    assert pack.manifest.classification != named
    assert slot.config.ignored == {"backend": 1}
    (root / "tiny" / "other.txt").write_text("one")
    with pytest.raises(PackError, match=r"other\.txt: 1 labels for 10 classes"):
        labelled(pack, slot)
    (root / "tiny" / "config.pbtxt").write_text(text.replace(output, "none"))
    (slot,) = slots(root, "tiny")
    with pytest.raises(PackError, match="'none'"):
        labelled(pack, slot)
