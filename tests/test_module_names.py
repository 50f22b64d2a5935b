"""At most two modules of one name: a traceback, a search, or a tab of an editor says where one is."""

from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("models", "loader", "pipeline", "papers", "server", "layerstream", "cli", "benchmarks")
#: What every package may have: what it is, what ``python -m`` runs, what can go wrong.
CONVENTIONAL = ("__init__", "__main__", "errors")
MOST = 2


def test_no_more_than_two_modules_have_one_name() -> None:
    places = defaultdict(list)
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path.stem not in CONVENTIONAL:
                places[path.stem].append(str(path.relative_to(ROOT)))
    assert {name: where for name, where in places.items() if len(where) > MOST} == {}
