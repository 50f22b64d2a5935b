"""What the service answers on the wire, recorded before its inside changes and compared while it does.

``python -m tests.exchanges record FILE`` writes what five servers answer to some hundreds of requests over
HTTP and gRPC; ``compare FILE`` prints each line that is not as recorded, and ends with 1.

Numbers of the models are exact, so the record holds on every machine with the same libraries. What is never
the same twice has a name instead: ``RULES`` in ``wire.py``.
"""

import argparse
import difflib
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from server.operation.process import installed_version
from tests.exchanges.around import held, keys, short_times, unix
from tests.exchanges.over_grpc import over_grpc
from tests.exchanges.over_http import usual
from tests.exchanges.servers import Server, served
from tests.exchanges.wire import Exchange

Record = Mapping[str, list[str]]

ROOMS: dict[str, Callable[[Server], Iterator[Exchange]]] = {
    "usual": lambda server: itertools.chain(usual(server), over_grpc(server)),
    "keys": keys,
    "unix": unix,
    "held": held,
    "short": short_times,
}


def exchanges() -> dict[str, list[str]]:
    """Return what all servers answer, by their names and what they were asked."""
    with (
        tempfile.TemporaryDirectory() as folder,
        served(Path(folder)) as servers,
        ThreadPoolExecutor(len(servers)) as pool,
    ):
        asked = [pool.submit(_of, room, ROOMS[room], servers[room]) for room in ROOMS]
        return {name: said for each in asked for name, said in each.result().items()}


def _of(
    name: str, room: Callable[[Server], Iterator[Exchange]], server: Server
) -> dict[str, list[str]]:
    known = {
        str(server.folder): "FOLDER",
        f":{server.port or 'none'}": ":PORT",
        f'"{installed_version()}"': '"VERSION"',
    }
    found: dict[str, list[str]] = {}
    for what, lines in room(server):
        text = "\n".join(lines)
        for value, called in known.items():
            text = text.replace(value, called)
        key = f"{name}/{what}"
        assert key not in found, f"{key} is asked twice"
        found[key] = text.split("\n")
    return found


def differences(recorded: Record, found: Record) -> Iterator[str]:
    """Yield what is not as recorded, a line each."""
    for key in sorted(recorded.keys() | found.keys()):
        old, new = recorded.get(key, []), found.get(key, [])
        for line in difflib.ndiff(old, new):
            if line[0] in "+-":
                yield f"{key}: {line}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.exchanges", description=__doc__)
    parser.add_argument("command", choices=("record", "compare"))
    parser.add_argument("file", type=Path)
    given = parser.parse_args()
    began = time.monotonic()
    found = exchanges()
    print(f"{len(found)} exchanges, {time.monotonic() - began:.1f} s", file=sys.stderr)
    if given.command == "record":
        given.file.write_text(json.dumps(found, indent=0, ensure_ascii=False) + "\n")
        return 0
    told = list(differences(json.loads(given.file.read_text()), found))
    print(*told, sep="\n", end="\n" if told else "")
    return int(bool(told))


if __name__ == "__main__":
    sys.exit(main())
