"""Records go through JSON unchanged, and no document makes anything but records."""

import contextlib
import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.packs.manifest import Manifest
from models.packs.pack import open_pack
from pipeline.devices.cpu import CpuDevice
from pipeline.fitting.fit import fit, fit_lanes
from pipeline.fitting.partitioned import fit_partitions
from pipeline.fitting.wanted import LEAST, EnginePlanResult, Wanted
from pipeline.planning.found_plans import FoundPlans
from pipeline.program.prepare import prepare
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES
from server.repository import apart
from server.repository.limited_process import name_of
from server.repository.preparing import figures
from server.repository.records import RecordError, from_json, to_json
from server.requests.exchange import BodyLimit
from tests.pipeline.made_profiles import profile
from tests.pipeline.small import small_pack

AUTO, RESIDENT = ARCHITECTURES["auto"], ARCHITECTURES["pre"]


def through(value: Any) -> Any:
    return from_json(json.loads(json.dumps(to_json(value))))


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    pack = open_pack(small_pack(Path(tmp_path_factory.mktemp("repository"))))
    return prepare(pack, CpuDevice(1))


_TEXTS = st.text("a\u00e9\u2028\x00", max_size=3)
_PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | _TEXTS,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(_TEXTS | st.integers() | st.tuples(_TEXTS), inner)
    ),
    max_leaves=20,
)


@given(_PLAIN)
def test_collections_stay_what_they_are(value: Any) -> None:
    assert through(value) == value
    assert repr(through(value)) == repr(value)


def test_what_else_records_hold_stays(program: Program) -> None:
    for value in (frozenset({1, 2}), range(1, 9, 2), b"\x00\xff", Path("a/b"), float("inf")):
        assert through(value) == value
    shared = (1.5, "x")
    one, other = through([shared, shared])
    assert one is other
    named = BodyLimit(1, "a")
    assert through(named) == named


def test_a_program_and_its_profile_stay(program: Program) -> None:
    sent = through(program)
    assert sent.checksum == program.checksum
    assert sent.pack.manifest == program.pack.manifest
    assert isinstance(sent.pack.manifest, Manifest)
    assert sent.values is sent.pack.manifest.values
    assert sent.pack.graphs == program.pack.graphs
    measured = profile(program)
    assert through(measured) == measured


@pytest.mark.parametrize("profiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_every_search_finds_the_same_through_json(
    program: Program, profiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the process does it, without one."""
    monkeypatch.setattr(apart, "say", json.dumps)
    measured = profile(program) if profiled else None
    total_bytes = 2 * fit(program, AUTO, LEAST).plan.total_bytes
    searches: list[tuple[Any, ...]] = [
        (fit, program, AUTO, LEAST, measured),
        (fit_lanes, program, AUTO, Wanted(total_bytes=total_bytes), measured, 2),
        (fit_partitions, program, AUTO, 2, total_bytes, measured),
    ]
    if profiled:
        searches.append((figures, program, AUTO, RESIDENT, measured))
    for function, *arguments in searches:
        cache, expected_cache = FoundPlans(), FoundPlans()
        accepts_plans = function is not fit_partitions
        sent = [*arguments, cache] if accepts_plans else arguments
        question = to_json([*map(apart._portable, sent)])
        message = json.loads(json.dumps(apart.searched(name_of(function), question)))
        result, (*plans,) = from_json(message)
        expected = function(*arguments, *([expected_cache] if accepts_plans else []))
        actual = apart._whole(result, arguments)
        if isinstance(expected, EnginePlanResult):
            assert actual.plan.as_dict() == expected.plan.as_dict()
            assert (actual.reasons, actual.prediction) == (expected.reasons, expected.prediction)
        else:
            assert actual == expected
        assert [sent_plans.plans().all() for sent_plans in plans] == (
            [expected_cache.all()] if accepts_plans else []
        )


def test_other_classes_are_refused_on_either_side() -> None:
    for value in (object(), OrderedDict, Path.exists, 1j, json.JSONDecoder(), FoundPlans()):
        with pytest.raises(RecordError):
            to_json([value])
    for name in (
        *("os:system", "builtins:eval", "subprocess:Popen", "models.packs.pack:open_pack"),
        *("models.processes:start", "models.processes:subprocess", "models:os.system", "x"),
        "server.repository.limited_process:limit",
    ):
        with pytest.raises(RecordError):
            from_json({"root": [0], "nodes": [["record", [name, {"args": "true"}]]]})


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 3) | st.sampled_from(("record", "tuple", "dict")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner),
    max_leaves=12,
)
_KINDS = st.sampled_from(("record", "tuple", "dict", "range", "bytes", "path", "frozenset", "?"))


@given(_JSON, st.lists(st.tuples(_KINDS, _JSON), max_size=4))
def test_damaged_documents_are_one_error(root: Any, nodes: list[Any]) -> None:
    for document in ({"root": root, "nodes": nodes}, root, {"root": root}):
        with contextlib.suppress(RecordError):
            from_json(document)
