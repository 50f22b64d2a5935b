"""Names of classes and of modules: a traceback, a search, or an import says where one is."""

import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# What users import from layerstream has their words, such as Budget.
FOLDERS = ("models", "loader", "pipeline", "papers", "server", "cli", "benchmarks")
#: A schema of the documentation is called as what it documents.
SCHEMAS = Path("server/protocol/schemas.py")
#: Trees of syntax take fifteen times as long.
_DEFINED = re.compile(r"^ *class ([A-Za-z]\w*)[(:\[]", re.MULTILINE)
#: What every package may have: what it is, what ``python -m`` runs, what can go wrong.
CONVENTIONAL = ("__init__", "__main__", "errors")
MOST = 2


def test_no_public_class_name_is_defined_twice() -> None:
    places = defaultdict(list)
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            place = path.relative_to(ROOT)
            if place == SCHEMAS:
                continue
            for name in _DEFINED.findall(path.read_text("utf-8")):
                places[name].append(str(place))
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_no_more_than_two_modules_have_one_name() -> None:
    places = defaultdict(list)
    for folder in (*FOLDERS, "layerstream"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path.stem not in CONVENTIONAL:
                places[path.stem].append(str(path.relative_to(ROOT)))
    assert {name: where for name, where in places.items() if len(where) > MOST} == {}
