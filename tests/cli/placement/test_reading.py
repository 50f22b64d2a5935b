"""Whatever a file says of models and nodes: it is read, or refused in one line with file, line and key."""

import math
import re
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from hypothesis import given
from hypothesis import strategies as st

from cli.placement.problem import FleetNode, Model
from cli.placement.reading import Needs, PlacementFileError, read_models, read_nodes
from tests.examples import examples

# As TOML writes them.
VALUES = st.one_of(
    st.sampled_from(
        ("inf", "-inf", "nan", "true", "[]", "{}", "-0.0", "0", "1e400", '""', '"\\n"')
    ),
    st.integers(-(10**20), 10**20).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.sampled_from(('"1GiB"', '"20ms"', '"-1MiB"', '"0ms"', '"infMiB"', '"nan"', '["a"]', "[1]")),
)
MODEL = {"name": '"m"', "memory": '"20MiB"', "delay": '"5ms"', "requests": "3", "read": '"1MiB"'}
NODE = {"name": '"n"', "count": "2", "memory": '"1GiB"', "speed": "1.5", "read": '"1GB"'}
Tables = Mapping[str, str]
Read = TypeVar("Read", Model, FleetNode)


def tables(good: dict[str, str]) -> st.SearchStrategy[list[Tables]]:
    """Two tables that differ from ``good`` in a value, a key too many or one that is left out."""
    keys = st.sampled_from((*good, "labels", "replicas", "other"))
    changes = st.dictionaries(keys, st.none() | VALUES, max_size=2)
    changed = changes.map(
        lambda found: {key: text for key, text in {**good, **found}.items() if text is not None}
    )
    return st.lists(changed, max_size=2)


def toml(kind: str, said: list[Tables]) -> str:
    lines: list[str] = []
    for table in said:
        lines += [f"[[{kind}]]", *(f"{key} = {value}" for key, value in table.items())]
    return "\n".join(lines)


def read(kind: str, said: list[Tables], reader: Callable[[Path], list[Read]]) -> list[Read]:
    """What was read; nothing where it was refused, in one line that has its place."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "said.toml")
        path.write_text(toml(kind, said))
        try:
            return reader(path)
        except PlacementFileError as exc:
            text = str(exc)
            assert "\n" not in text
            assert re.match(rf"{re.escape(str(path))}(:\d+: |: no \[\[{kind}\]\])", text), text
            return []


def no_pack(folder: Path, delay: float | None) -> Needs:
    raise AssertionError(folder, delay)


@examples(30, 600)
@given(said=tables(MODEL))
def test_models_are_read_or_refused(said: list[Tables]) -> None:
    found: list[Model] = read("model", said, lambda path: read_models(path, no_pack))
    assert len({model.name for model in found}) == len(found)
    for model in found:
        assert model.need_bytes > 0
        assert model.replicas > 0
        assert all(
            0 <= value < math.inf for value in (model.requests, model.seconds, model.read_bytes)
        )


@examples(30, 600)
@given(said=tables(NODE))
def test_nodes_are_read_or_refused(said: list[Tables]) -> None:
    small = [table for table in said if len(table.get("count", "")) < 5]
    found: list[FleetNode] = read("node", small, lambda path: read_nodes(path, 100, 10, 0.8))
    assert len({node.name for node in found}) == len(found)
    for node in found:
        assert node.memory_bytes > 0
        assert 0 < node.speed < math.inf
        assert node.read_bytes > 0
