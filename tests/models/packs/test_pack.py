"""Packs that break the format (docs/reference/pack-format.md, "Reading"), one fault at a time."""

import json
import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from models.errors import PackError
from models.packs.folders import FORMAT_VERSION, find_pack, versions
from models.packs.manifest import with_checksum, write_manifest
from models.packs.pack import FILES, Pack, open_pack
from models.packs.target import host_target
from pipeline.program.program import Program
from pipeline.program.row_network import RowNetwork
from tests.models.packs.documents import Document, read_document, write_document
from tests.models.refusal import refuses

Change = Callable[[Document], object]


def edit(folder: Path, change: Change) -> Path:
    """Apply ``change`` to the manifest in ``folder`` and return the manifest's path."""
    document = read_document(folder)
    change(document)
    write_document(folder, document)
    return folder / "manifest.json"


def put(*path: Any) -> Change:
    """Return a change that sets ``path[:-1]`` of the document to ``path[-1]``."""

    def change(document: Any) -> None:
        *way, last, value = path
        for key in way:
            document = document[key]
        document[last] = value

    return change


def piece_with_span(document: Document) -> int:
    return next(i for i, piece in enumerate(document["pieces"]) if piece.get("span") is not None)


def test_a_sound_pack_opens(pack_folder: Path, tiny_pack: Pack) -> None:
    pack = open_pack(pack_folder)
    assert pack.manifest == tiny_pack.manifest
    assert pack.graphs == tiny_pack.graphs
    write_manifest(pack.manifest, pack_folder / "manifest.json")
    assert open_pack(pack_folder) == pack


# Where a pack is looked for


def test_latest_version_is_found_by_number(tmp_path: Path) -> None:
    for name in ("2", "10", "9", ".11", "11.old", "x", "0", "012", "-3", "٣٣", "1e3"):
        (tmp_path / name).mkdir()
    (tmp_path / "99").write_text("a file")
    assert [path.name for path in versions(tmp_path)] == ["2", "9", "10"]
    assert find_pack(tmp_path) == tmp_path / "10"


def test_missing_and_empty_folders_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    file.touch()
    with refuses(PackError, file, "a file, not a pack"):
        open_pack(file)
    with refuses(PackError, tmp_path / "none", "no such folder"):
        open_pack(tmp_path / "none")
    with refuses(PackError, tmp_path, "no pack in it"):
        open_pack(tmp_path)
    (tmp_path / "1").mkdir()
    with refuses(PackError, tmp_path / "1", "no pack in it"):
        open_pack(tmp_path / "1")
    with refuses(PackError, tmp_path / "1" / "manifest.json", "No such file"):
        open_pack(tmp_path)


def test_hidden_folder_is_never_a_pack(pack_folder: Path) -> None:
    """What an interrupted compilation leaves may be complete, and still is not a pack."""
    left = pack_folder.rename(pack_folder.parent / ".compiling-1-4711")
    assert versions(left.parent) == []
    with refuses(PackError, left.parent, "no pack in it"):
        open_pack(left.parent)
    with refuses(PackError, left, "not a pack"):
        open_pack(left)


# The manifest


@pytest.mark.parametrize(
    "content",
    [b"", b"weights", b"{", b"\xff\xfe\x00", b'{"name": "a"} x', b"[" * 100_000, b"9" * 5000],
    ids=["empty", "text", "open", "no-utf8", "rest", "deep", "long-number"],
)
def test_manifest_that_is_not_json_is_refused(content: bytes, pack_folder: Path) -> None:
    path = pack_folder / "manifest.json"
    path.write_bytes(content)
    with refuses(PackError, path, "not JSON"):
        open_pack(pack_folder)


@pytest.mark.parametrize("content", ["null", "[]", "3", '"text"', "{}", "NaN", '{"a\\nb": 1}'])
def test_json_that_is_no_manifest_is_refused(content: str, pack_folder: Path) -> None:
    path = pack_folder / "manifest.json"
    path.write_text(content)
    with refuses(PackError, path):
        open_pack(pack_folder)


def test_a_field_that_is_wrong_before_text_that_is_no_json_is_refused(pack_folder: Path) -> None:
    path = pack_folder / "manifest.json"
    path.write_bytes(with_checksum(b'{\n"unknown": 1,\n"format_version": '))
    with refuses(PackError, path):
        open_pack(pack_folder)


def test_a_manifest_with_any_byte_changed_is_refused(pack_folder: Path) -> None:
    path = pack_folder / "manifest.json"
    sound = path.read_bytes()
    rng = random.Random(7)
    places = [*range(48), *(rng.randrange(len(sound)) for _ in range(300))]
    for place in places:
        changed = bytearray(sound)
        changed[place] ^= rng.randrange(1, 256)
        path.write_bytes(changed)
        with refuses(PackError, path, "" if place < 48 else "damaged: its checksum is another"):
            open_pack(pack_folder)
    path.write_bytes(sound)
    open_pack(pack_folder)


@pytest.mark.parametrize(
    ("indent", "why"), [(0, "its checksum is another"), (None, "it has no checksum")]
)
def test_a_manifest_that_somebody_changed_says_what_to_do(
    indent: int | None, why: str, pack_folder: Path
) -> None:
    """``indent``: of JSON that has the checksum in its second line, or that is one line."""
    path = pack_folder / "manifest.json"
    document = json.loads(path.read_bytes())
    document["parameters"] += 1
    path.write_text(json.dumps(document, indent=indent))
    with refuses(PackError, path, f"damaged: {why}; copy the pack again, or compile its source"):
        open_pack(pack_folder)


def test_newer_format_is_refused(pack_folder: Path) -> None:
    def newer(document: Document) -> None:
        document["format_version"] = FORMAT_VERSION + 1
        document["field_of_the_future"] = 1  # what is said is the version, not this field

    path = edit(pack_folder, newer)
    with refuses(PackError, path, "format_version", f"{FORMAT_VERSION + 1} is newer than"):
        open_pack(pack_folder)


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("nets/m.onnx", "nets/m.onnx"),
        ("a\nb", "SOURCE.onnx"),
        ("x" * 300, "SOURCE.onnx"),
        (3, "SOURCE.onnx"),
    ],
)
def test_the_first_format_is_refused_with_the_command_that_compiles_it_again(
    source: object, shown: str, pack_folder: Path
) -> None:
    """It said neither its version nor its checksum, and nothing of it was checked yet."""
    document = read_document(pack_folder)
    del document["format_version"]
    document["source"]["file"] = source
    path = pack_folder / "manifest.json"
    path.write_text(json.dumps(document))
    remedy = f"layerstream compile {shown} -o {pack_folder.parent} --force"
    with refuses(PackError, path, f"format_version: 1 is older than {FORMAT_VERSION}", remedy):
        open_pack(pack_folder)


@pytest.mark.parametrize("version", [0, -1, "1", 1.5, None, [], 2.0])
def test_nonsensical_format_versions_are_refused(version: object, pack_folder: Path) -> None:
    path = edit(pack_folder, put("format_version", version))
    with refuses(PackError, path, "format_version"):
        open_pack(pack_folder)


@pytest.mark.parametrize("change", [{"isa": "riscv64-v", "block": 4}, {"block": 3}])
def test_other_target_is_refused(change: dict[str, Any], pack_folder: Path) -> None:
    path = edit(pack_folder, lambda document: document["target"].update(change))
    with refuses(PackError, path, "target", host_target().isa, "compile the source again"):
        open_pack(pack_folder)
    other = replace(host_target(), **change)
    assert open_pack(pack_folder, other).manifest.target.runs_on(other)


def test_other_library_version_is_no_other_target(pack_folder: Path) -> None:
    edit(pack_folder, put("target", "onnxruntime", "0.0.1"))
    assert open_pack(pack_folder).manifest.target.onnxruntime == "0.0.1"


@pytest.mark.parametrize(
    "way",
    [
        *((), ("target",), ("source",), ("files", "weights.bin"), ("spans", 0), ("graphs", 0)),
        *(("values", 0), ("pieces", 0), ("pieces", 0, "inputs", 0), ("layers", 0), ("inputs", 0)),
    ],
    ids=lambda way: ".".join(map(str, way)),
)
def test_unknown_fields_are_refused(way: tuple[Any, ...], pack_folder: Path) -> None:
    path = edit(pack_folder, put(*way, "surprise", 1))
    with refuses(PackError, path, ".".join([*map(str, way), "surprise"])):
        open_pack(pack_folder)


@pytest.mark.parametrize(
    ("way", "value"),
    [
        (("spans", 0, "offset"), -4096),
        (("spans", 0, "checksum"), "0123456789ABCDEF"),
        (("spans", 0, "checksum"), "0123456789abcde"),
        (("values", 0, "shape"), [1, -3]),
        (("values", 0, "shape"), 3),
        (("values", 0, "shape"), [1] * 65),
        (("values", 0, "shape"), [0, 1 << 62, 1 << 62]),
        (("values", 0, "dtype"), "object"),
        (("values", 0, "dtype"), "no type"),
        (("values", 0, "dtype"), "f4,f4"),
        (("values", 0, "dtype"), "datetime64"),
        (("values", 0, "dtype"), "S5"),
        (("values", 0, "dtype"), ""),
        (("pieces", 0, "inputs"), None),
        (("pieces", 0, "inputs", 0, "kind"), "file"),
        (("parameters",), "many"),
        (("graphs", 0, "session_bytes"), -1),
        (("pieces", 0, "scratch_bytes"), 1.5),
        (("alternatives", 0, "joined", 0, "n_chunks"), 0),
        (("name",), None),
    ],
)
def test_fields_of_the_wrong_kind_are_named(
    way: tuple[Any, ...], value: object, pack_folder: Path
) -> None:
    path = edit(pack_folder, put(*way, value))
    with refuses(PackError, path, ".".join(map(str, way))):
        open_pack(pack_folder)


@pytest.mark.parametrize("field", ["name", "target", "spans", "pieces", "inputs", "parameters"])
def test_missing_fields_are_named(field: str, pack_folder: Path) -> None:
    path = edit(pack_folder, lambda document: document.pop(field))
    with refuses(PackError, path, field, "required"):
        open_pack(pack_folder)


def test_huge_manifest_is_refused_unread(pack_folder: Path) -> None:
    path = pack_folder / "manifest.json"
    os.truncate(path, 1 << 40)  # sparse: reading it would take the whole memory
    with refuses(PackError, path, "larger than"):
        open_pack(pack_folder)


# The files


@pytest.mark.parametrize("name", FILES)
def test_missing_file_is_named(name: str, pack_folder: Path) -> None:
    (pack_folder / name).unlink()
    with refuses(PackError, pack_folder / name, "missing"):
        open_pack(pack_folder)


@pytest.mark.parametrize("name", FILES)
def test_folder_in_place_of_a_file_is_refused(name: str, pack_folder: Path) -> None:
    (pack_folder / name).unlink()
    (pack_folder / name).mkdir()
    with refuses(PackError, pack_folder / name, "not a file"):
        open_pack(pack_folder)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(("change", "state"), [(-1, "truncated"), (1, "too long"), (4096, "too")])
def test_other_size_is_refused(name: str, change: int, state: str, pack_folder: Path) -> None:
    size = (pack_folder / name).stat().st_size
    os.truncate(pack_folder / name, size + change)
    with refuses(PackError, pack_folder / name, state, f"{size + change} bytes", size):
        open_pack(pack_folder)


@pytest.mark.parametrize("name", [*FILES, "manifest.json"])
@pytest.mark.parametrize("kind", ["outside", "dangling", "loop"])
def test_symlinks_that_leave_the_pack_are_refused(
    name: str, kind: str, pack_folder: Path, tmp_path: Path
) -> None:
    file = pack_folder / name
    file.rename(tmp_path / name)
    targets = {"outside": tmp_path / name, "dangling": Path("none"), "loop": Path(name)}
    file.symlink_to(targets[kind])
    with refuses(PackError, file if name != "manifest.json" or kind == "outside" else pack_folder):
        open_pack(pack_folder)


@pytest.mark.parametrize("name", [*FILES, "manifest.json"])
def test_pipe_in_place_of_a_file_is_refused(name: str, pack_folder: Path) -> None:
    """Opening a pipe to read would wait for a writer for ever."""
    (pack_folder / name).unlink()
    os.mkfifo(pack_folder / name)
    with refuses(PackError, pack_folder / name):
        open_pack(pack_folder)


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"../weights.bin": {"n_bytes": 0}},
        {"/etc/passwd": {"n_bytes": 0}},
        {name: {"n_bytes": 0} for name in (*FILES, "../1/weights.bin")},
    ],
)
def test_files_of_other_names_are_refused(files: Document, pack_folder: Path) -> None:
    path = edit(pack_folder, put("files", files))
    with refuses(PackError, path, "files"):
        open_pack(pack_folder)


def test_any_flipped_bit_in_pieces_is_found_at_open(pack_folder: Path) -> None:
    path = pack_folder / "pieces.bin"
    data = path.read_bytes()
    for bit in random.Random(5).sample(range(8 * len(data)), 50):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with refuses(PackError, path, "damaged"):
            open_pack(pack_folder)


def test_pieces_without_a_checksum_are_refused(pack_folder: Path) -> None:
    edit(pack_folder, put("files", "pieces.bin", "checksum", None))
    with refuses(PackError, pack_folder / "pieces.bin", "checksum"):
        open_pack(pack_folder)


# Spans


def grow(document: Document) -> None:
    document["spans"][1]["length"] += 4096


def shift(document: Document) -> None:
    document["spans"][1]["offset"] += 4096
    document["spans"][1]["length"] -= 4096


@pytest.mark.parametrize(
    ("change", "field", "reason"),
    [
        (put("spans", 1, "offset", 4097), "spans.1", "is not on 4096"),
        (put("spans", 1, "length", 4095), "spans.1", "is not on 4096"),
        (grow, "spans.2", "overlaps the span before it"),
        (shift, "spans.1", "leaves a hole from 4096 to 8192"),
        (put("spans", 0, "offset", 4096), "spans.0", "leaves a hole from 0 to 4096"),
        (put("spans", -1, "length", 1 << 40), "spans.{last}", "out of range of weights.bin"),
        (put("spans", -1, "length", 0), "spans.{last}.length", ""),
        (lambda document: document["spans"].pop(), "spans", "not at the end of weights.bin"),
        (lambda document: document["spans"].reverse(), "spans.0", "hole"),
        (put("spans", []), "spans", "not at the end of weights.bin"),
    ],
)
def test_spans_that_do_not_tile_the_file_are_refused(
    change: Change, field: str, reason: str, pack_folder: Path, tiny_pack: Pack
) -> None:
    path, last = edit(pack_folder, change), len(tiny_pack.manifest.spans) - 1
    with refuses(PackError, path, field.format(last=last), reason):
        open_pack(pack_folder)


def unused_span(document: Document) -> None:
    """Let the first piece that streams a span stream none."""
    piece = document["pieces"][piece_with_span(document)]
    piece["span"] = None
    piece["inputs"] = [operand for operand in piece["inputs"] if operand["kind"] == "value"]


def test_streamed_span_that_no_piece_uses_is_refused(pack_folder: Path) -> None:
    """A reader could not find out when its bytes are used up."""
    path = edit(pack_folder, unused_span)
    with refuses(PackError, path, "spans.1", "no piece"):
        open_pack(pack_folder)


def test_piece_that_streams_a_resident_span_is_refused(pack_folder: Path) -> None:
    def change(document: Document) -> None:
        document["spans"][1]["resident"] = True

    path = edit(pack_folder, change)
    with refuses(PackError, path, "pieces.0.span", "resident"):
        open_pack(pack_folder)


def test_resident_spans_come_first(pack_folder: Path) -> None:
    def change(document: Document) -> None:
        document["spans"][5]["resident"] = True
        document["pieces"][4]["span"] = None

    path = edit(pack_folder, change)
    with refuses(PackError, path, "spans.5", "resident"):
        open_pack(pack_folder)


# Pieces, values, layers, ports


@pytest.mark.parametrize(
    ("change", "field", "reason"),
    [
        (put("graphs", 0, "offset", 1 << 40), "graphs.0", "out of range"),
        (put("graphs", 0, "length", 1 << 40), "graphs.0", "out of range"),
        (put("pieces", 3, "graph", 99), "pieces.3.graph", "99 is out of range"),
        (put("pieces", 3, "span", 99), "pieces.3.span", "99 is out of range"),
        (put("pieces", 3, "span", 1), "pieces.3.span", "out of order"),
        (put("pieces", 3, "inputs", 0, "index", 99), "pieces.3", "value 99 is out of range"),
        (put("pieces", 3, "inputs", 0, "offset", 1 << 40), "pieces.3", "are outside value"),
        (put("pieces", 3, "inputs", 0, "shape", [1, 1 << 40]), "pieces.3", "are outside value"),
        (put("pieces", 3, "inputs", 1, "index", 99), "pieces.3", "span 99 is out of range"),
        (put("pieces", 3, "inputs", 1, "index", 2), "pieces.3", "which is not its own"),
        (put("pieces", 3, "inputs", 1, "offset", 36_860), "pieces.3", "are outside span"),
        (put("pieces", 3, "outputs", 0, "index", 99), "pieces.3", "value 99 is out of range"),
        (put("pieces", 3, "outputs", 0, "offset", 1 << 40), "pieces.3", "are outside value"),
        (put("values", 3, "parent", 99), "values.3.parent", "99 is out of range"),
        (put("values", 3, "parent", 3), "values.3.parent", "leads back"),
        (put("layers", 1, "first_piece", 99), "layers.1", "out of range"),
        (put("layers", 1, "end_piece", 99), "layers.1", "out of range"),
        (put("layers", 1, "end_piece", 1), "layers.1", "out of range"),
        (put("inputs", 0, "value", 99), "inputs.0.value", "99 does not hold it"),
        (put("inputs", 0, "shape", [1, 3, 8, 9]), "inputs.0.value", "does not hold it"),
        (put("outputs", 0, "value", 99), "outputs.0.value", "99 does not hold it"),
        (put("outputs", 0, "dtype", "int32"), "outputs.0.value", "does not hold it"),
    ],
)
def test_ranges_outside_of_what_they_refer_to_are_refused(
    change: Change, field: str, reason: str, pack_folder: Path
) -> None:
    path = edit(pack_folder, change)
    with refuses(PackError, path, field, reason):
        open_pack(pack_folder)


def test_weights_of_nothing_are_refused(pack_folder: Path) -> None:
    """Of a dimension of 0 kernels may never return."""

    def change(document: Document) -> None:
        *_, weights = (each for each in document["pieces"][3]["inputs"] if each["kind"] == "span")
        weights["shape"][-1] = 0

    path = edit(pack_folder, change)
    with refuses(PackError, path, "pieces.3", "nothing of span"):
        open_pack(pack_folder)


def test_piece_that_writes_to_weights_is_refused(pack_folder: Path) -> None:
    def change(document: Document) -> None:
        piece = document["pieces"][3]
        piece["outputs"] = [operand for operand in piece["inputs"] if operand["kind"] == "span"]

    path = edit(pack_folder, change)
    with refuses(PackError, path, "pieces.3.outputs", "cannot write to weights"):
        open_pack(pack_folder)


@pytest.mark.parametrize("length", [2, 3, 5])
def test_cycles_of_values_are_refused(length: int, pack_folder: Path) -> None:
    def change(document: Document) -> None:
        values = document["values"][:length]
        for number, value in enumerate(values):
            value |= {"parent": (number + 1) % length, "offset": 0}
            value |= {"shape": [1], "dtype": "float32"}

    path = edit(pack_folder, change)
    with refuses(PackError, path, "values.0.parent", "leads back"):
        open_pack(pack_folder)


def test_values_may_lie_as_deep_in_others_as_a_file_says(pack_folder: Path) -> None:
    depth = 3000

    def change(document: Document) -> None:
        first = len(document["values"])
        document["values"] += [
            {"name": "v", "dtype": "float32", "shape": [1], "parent": first + number + 1}
            for number in range(depth)
        ]
        document["values"].append({"name": "v", "dtype": "float32", "shape": [1]})

    edit(pack_folder, change)
    program = Program.as_compiled(open_pack(pack_folder))
    assert RowNetwork(program).readers.after(len(program.pieces))


def test_piece_that_makes_nothing_is_refused(pack_folder: Path) -> None:
    path = edit(pack_folder, put("pieces", 3, "outputs", []))
    with refuses(PackError, path, "pieces.3.outputs", "none"):
        open_pack(pack_folder)


def test_value_that_ends_beyond_its_parent_is_refused(pack_folder: Path) -> None:
    path = edit(pack_folder, lambda d: d["values"][2].update(parent=1, offset=1 << 40))
    with refuses(PackError, path, "values.2", "does not fit in its parent"):
        open_pack(pack_folder)


# What :classify needs


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("classification", {"output": "none", "scores": "logits"}, "classification.output"),
        (
            "classification",
            {"output": "logits", "scores": "logits", "labels": ["a"]},
            "classification.labels",
        ),
        ("preprocess", {"size": [9, 9]}, "preprocess"),
        ("preprocess", {"size": [8, 8], "std": [1, 0, 1]}, "preprocess.std"),
    ],
)
def test_recipes_that_do_not_fit_the_ports_are_refused(
    field: str, value: Document, named: str, pack_folder: Path
) -> None:
    path = edit(pack_folder, put(field, value))
    with refuses(PackError, path, named):
        open_pack(pack_folder)


def test_recipes_that_fit_are_kept(pack_folder: Path) -> None:
    labels = [f"class {number}" for number in range(10)]
    edit(pack_folder, put("preprocess", {"size": [8, 8]}))
    edit(
        pack_folder,
        put("classification", {"output": "logits", "scores": "logits", "labels": labels}),
    )
    manifest = open_pack(pack_folder).manifest
    assert manifest.preprocess is not None
    assert manifest.classification is not None
    assert list(manifest.classification.labels) == labels
