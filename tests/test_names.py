"""Names of classes: a traceback, a search, or an import says where one is."""

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


def test_no_public_class_name_is_defined_twice() -> None:
    paths = defaultdict(list)
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            relative = path.relative_to(ROOT)
            if relative == SCHEMAS:
                continue
            for name in _DEFINED.findall(path.read_text("utf-8")):
                paths[name].append(str(relative))
    assert {name: where for name, where in paths.items() if len(where) > 1} == {}
