"""What the service answers is as recorded; ``python -m tests.exchanges record`` writes a new record."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.exchanges.__main__ import differences
from tests.exchanges.wire import short, steady

RECORD = Path(__file__).with_name("record.json")
ROOT = RECORD.parents[2]


def test_differences_are_told_line_by_line() -> None:
    recorded = {"a": ["HTTP/1.1 200 OK", "x: 1", "then kept"], "b": ["OK"], "gone": ["1"]}
    found = {"a": ["HTTP/1.1 200 OK", "x: 2", "then kept"], "b": ["OK"], "new": ["2"]}
    told = ["a: - x: 1", "a: + x: 2", "gone: - 1", "new: + 2"]
    assert [line for line in differences(recorded, found) if "? " not in line] == told
    assert not list(differences(recorded, recorded))


def test_what_differs_each_time_has_a_name() -> None:
    said = 'date: Thu\netag: "a"\nretry-after: 3\nx-request-id: ' + "0a" * 16
    assert steady(said) == "date: DATE\netag: ETAG\nretry-after: N\nx-request-id: ID"
    assert steady('{"ns":12,"delay_ms": 1.5e-3}') == '{"ns":N,"delay_ms": N}'
    assert steady('"box":[1.00004,2e-09], "data":[1.00004]') == '"box":[1,2e-09], "data":[1.00004]'
    assert short(b"a" * 600) == short(b"a" * 600) != short(b"a" * 599 + b"b")


def test_no_exchange_says_what_is_true_of_one_machine() -> None:
    said = RECORD.read_text()
    assert not [word for word in ("/tmp", "/home", "Traceback", "127.0.0.1:") if word in said]


@pytest.mark.slow
def test_all_exchanges_are_as_recorded() -> None:
    command = [sys.executable, "-m", "tests.exchanges", "compare", str(RECORD)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-5000:]}{done.stderr[-2000:]}"


def test_the_record_has_every_server() -> None:
    servers = {key.split("/")[0] for key in json.loads(RECORD.read_text())}
    assert servers == {"usual", "keys", "unix", "held", "short"}
