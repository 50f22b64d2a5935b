"""A manifest with anything in any place: refused with PackError, or good enough to plan."""

import copy
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from models.packs.pack import Pack
from tests.examples import examples
from tests.fuzz.pack import ODD_VALUES, attempt, leaves
from tests.models.packs.documents import read_document, write_document

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


@examples(40, many=3000, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
