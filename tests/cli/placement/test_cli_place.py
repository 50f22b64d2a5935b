"""``layerstream place``: files in, a placement out; what is wrong is named by file, line and key."""

import json
from pathlib import Path

import pytest

from tests.server.support import BAD, Cli, Packs

MODELS = """
[[model]]
name = "big"
memory = "300MiB"
delay = "50ms"
requests = 30
[[model]]
name = "small"
memory = "20MiB"
delay = "5ms"
requests = 10
replicas = 2
"""
NODES = """
[[node]]
name = "box"
count = 4
memory = "1GiB"
labels = ["site"]
"""


def files(folder: Path, models: str = MODELS, nodes: str = NODES) -> tuple[str, str]:
    for name, text in (("models.toml", models), ("nodes.toml", nodes)):
        (folder / name).write_text(text)
    return str(folder / "models.toml"), str(folder / "nodes.toml")


def test_placed_and_placed_again(cli: Cli, tmp_path: Path) -> None:
    first = str(tmp_path / "placement.json")
    named = files(tmp_path)
    done = cli("place", *named, "-o", first)
    assert done.code == 0, done.err
    assert "box-1" in done.out
    found = json.loads(Path(first).read_text())
    assert found["used_nodes"] == 2
    assert {row["model"]: row["replicas"] for row in found["models"]} == {"big": 2, "small": 2}
    again = cli("place", *named, "--previous", first, "--json").document
    assert again["moves"] == {}
    pairs, known = ({(r["model"], r["node"]) for r in x["replicas"]} for x in (again, found))
    assert pairs == known


def test_needs_are_those_of_plans(cli: Cli, packs: Packs, tmp_path: Path) -> None:
    models = f'[[model]]\nname = "tiny"\npack = "{packs.repository / "tiny"}"\nrequests = 10\n'
    document = cli("place", *files(tmp_path, models), "--json").document
    (row,) = document["models"]
    assert row["need_bytes"] > packs.smallest("tiny")
    assert row["seconds"] > 0


@pytest.mark.parametrize(
    ("line", "text", "words"),
    [
        (5, 'memory = "1GiB"', 'memory = "lots"'),
        (5, 'memory = "1GiB"', "memory = -5"),
        (5, 'memory = "1GiB"', 'memory = "10MiB"'),
        (4, "count = 4", "count = 0"),
        (4, "count = 4", "speed = nan"),
        (4, "count = 4", "speed = true"),
        (4, "count = 4", "read = 0"),
        (6, 'labels = ["site"]', 'labels = "site"'),
        (6, 'labels = ["site"]', 'rack = "7"'),
        (3, 'name = "box"', "name = 7"),
    ],
)
def test_a_node_that_reports_nonsense(
    cli: Cli, tmp_path: Path, line: int, text: str, words: str
) -> None:
    named = files(tmp_path, nodes=NODES.replace(text, words))
    cli("place", *named).refuses(BAD, f"nodes.toml:{line}: {words.split(maxsplit=1)[0]}:")


@pytest.mark.parametrize(
    ("models", "words"),
    [
        (MODELS.replace('delay = "50ms"\n', ""), ("models.toml:2", "delay: missing")),
        (MODELS.replace('"50ms"', '"fast"'), ("models.toml:5", "delay")),
        (MODELS.replace('"small"', '"big"'), ("models.toml:8", "name")),
        (MODELS.replace("replicas = 2", "replicas = 1.5"), ("models.toml:12", "replicas")),
        (MODELS.replace('"300MiB"', '"3GiB"'), ("model big", "no node holds it", "would")),
        (MODELS.replace('memory = "20MiB"', 'pack = "nowhere"'), ("models.toml:9", "pack")),
        ("a = 1\n", ("no [[model]]",)),
        ("[[model]]\nname =\n", ("models.toml:2", "not TOML")),
    ],
)
def test_models_that_cannot_be_read_or_placed(
    cli: Cli, tmp_path: Path, models: str, words: tuple[str, ...]
) -> None:
    cli("place", *files(tmp_path, models)).refuses(BAD, *words)


def test_a_previous_placement_that_is_none(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("[]")
    named = files(tmp_path)
    for name, words in (("other.json", "not what"), ("gone.json", "No such file")):
        cli("place", *named, "--previous", str(tmp_path / name)).refuses(BAD, name, words)
