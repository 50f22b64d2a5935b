"""A manifest stays in memory as long as its model is served: what it takes there."""

import copy
import dataclasses
import gc
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from models.network.windows import Window
from models.packs.manifest import Manifest, read_manifest, without_checksum, write_manifest
from models.packs.pack import Pack
from models.packs.records.pieces import Operand
from models.packs.records.row_parts import RowInput
from tests.examples import examples
from tests.fuzz.pack import ODD_VALUES, attempt, leaves
from tests.models.packs.documents import read_document, write_document
from tests.pipeline.synthetic import chain

COUNT = 400


def written_chain(folder: Path) -> bytes:
    """Return the text of a manifest of ``COUNT`` pieces that do the same to values of one shape."""
    manifest = chain([1 << 20] * (COUNT + 1), [[0, 0]] * COUNT).pack.manifest
    write_manifest(manifest, folder / "manifest.json")
    return without_checksum((folder / "manifest.json").read_bytes())[0]


def inside(value: Any) -> Iterator[Any]:
    """Yield ``value`` and all records and tuples in it."""
    if isinstance(value, tuple):
        yield value
        for item in value:
            yield from inside(item)
    elif dataclasses.is_dataclass(value):
        yield value
        for field in dataclasses.fields(value):
            yield from inside(getattr(value, field.name))


def test_what_is_equal_is_one_object(tiny_pack: Pack) -> None:
    manifest = tiny_pack.manifest
    shared = (Operand, RowInput, Window)
    found = [
        record
        for part in (manifest.pieces, manifest.row_operators)
        for record in inside(part)
        if isinstance(record, shared)
    ]
    shapes = [record.shape for record in found if isinstance(record, Operand)]
    for records in (found, shapes):
        assert len({id(record) for record in records}) == len(set(records)) < len(records)


def test_records_have_no_dictionary(tiny_pack: Pack) -> None:
    fields = [getattr(tiny_pack.manifest, field.name) for field in dataclasses.fields(Manifest)]
    records = [record for record in inside(tuple(fields)) if dataclasses.is_dataclass(record)]
    assert len(records) > 50
    assert not any(hasattr(record, "__dict__") for record in records)


def test_a_piece_takes_less_than_half_a_kilobyte(tmp_path: Path) -> None:
    text = written_chain(tmp_path)
    read_manifest(text)  # what is made once for all
    gc.collect()
    tracemalloc.start()
    try:
        manifest = read_manifest(text)
        taken, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(manifest.pieces) == COUNT
    assert taken < 512 * COUNT
    assert peak < 3 * taken


# A manifest with anything in any place: refused with PackError, or good enough to plan.

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(ODD_VALUES),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=6,
)
MUTATIONS = st.lists(
    st.tuples(st.sampled_from(["replace", "remove", "nudge"]), st.integers(0, 1 << 30), JSON),
    min_size=1,
    max_size=4,
)


def mutate(document: Any, kind: str, choice: int, value: Any) -> None:
    places = leaves(document)
    if not places:
        return
    container, key = places[choice % len(places)]
    if kind == "remove":
        del container[key]
    elif kind == "replace":
        container[key] = copy.deepcopy(value)
    elif isinstance(container[key], int):
        container[key] += (-1, 1, 64, -64, 4096, -4096)[choice % 6]


@examples(8, many=3000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(mutations=MUTATIONS)
def test_mutated_manifest_is_refused_or_can_be_planned(
    mutations: list[tuple[str, int, Any]], tiny_pack: Pack, pack_folder: Path
) -> None:
    document = read_document(tiny_pack.folder)
    for mutation in mutations:
        mutate(document, *mutation)
    write_document(pack_folder, document)
    attempt(pack_folder)


def test_unchanged_manifest_is_accepted(pack_folder: Path) -> None:
    assert attempt(pack_folder)
