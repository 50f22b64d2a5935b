"""Every table of the command line, in a terminal of 80 columns and in a pipe, has the numbers of --json."""

import fcntl
import io
import os
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from cli.printing import bench_tables, output
from models.errors import printable
from models.packs.pack import Pack, open_pack
from pipeline.devices.cpu import CpuDevice
from pipeline.profiles.machine import this_machine
from pipeline.profiles.profile_file import manifest_checksum, save_profile
from pipeline.program.program import Program
from tests.cli.test_cli_darknet import DETECTOR
from tests.models.packs.documents import read_document, write_document
from tests.pipeline.made_profiles import profile
from tests.server.support import Cli, Packs

COLUMNS = 80
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
CUT = set("…│┃━─┏┓└┘")
NUMBER = re.compile(r"[-+]?[0-9][0-9,]*(?:\.[0-9]+)?(?:e-?[0-9]+)?")
#: What a number may be counted in: bytes, and parts of a second, are shown in larger units.
SIZES, PLAIN = (1 << 10, 1 << 20), (1,)
#: By how much it may differ: two decimals, or less of what is small; a minimum is rounded up.
TOLERANCE, SMALL = 0.0051, 0.06
TOLERANCES = {"smallest_budget_bytes": 0.0101, "weight_percent": 0.0501}

Show = Callable[..., str]


@dataclass(frozen=True)
class Case:
    """A command whose ``rows`` in --json are rows of its tables, which ``name`` begins."""

    arguments: tuple[object, ...]
    rows: str
    name: str
    numbers: tuple[str, ...]


CASES = {
    "zoo list": Case(("zoo", "list"), "", "name", ("parameters", "resolution")),
    "inspect": Case(
        ("inspect", "tiny", "--layers"), "layer_table", "name", ("weight_bytes", "pieces")
    ),
    "import-darknet": Case(
        ("import-darknet", "detector.cfg", "-o", "detector.onnx", "--layers"),
        "layer_table",
        "index",
        ("weight_bytes", "input_bytes", "output_bytes", "scratch_bytes", "total_bytes"),
    ),
    "list": Case(
        ("list", ".", "--budget", "64MiB", "--threads", 1),
        "models",
        "model",
        ("weight_bytes", "smallest_budget_bytes", "memory_bytes"),
    ),
    "plan": Case(
        ("plan", "tiny", "pair", "--budget", "64MiB", "--threads", 1),
        "packs",
        "model",
        (
            *("total_bytes", "weight_bytes", "arena_bytes", "scratch_bytes", "session_bytes"),
            *("io_bytes", "delay_ms", "bound_ms"),
        ),
    ),
    "simulate": Case(
        ("simulate", "tiny", "--threads", 1),
        "rows",
        "architecture",
        ("weight_bytes", "arena_bytes", "read_bytes", "delay_ms", "stall_ms", "bound_ms"),
    ),
}
BENCH = (
    *("weight_bytes", "weight_percent", "equation_bytes", "equation_layer_bytes", "arena_bytes"),
    *("read_bytes", "predicted_ms", "bound_ms", "stall_ms", "cpu_seconds"),
)


def save(pack: Pack) -> None:
    """Give ``pack`` a profile of this machine."""
    machine = this_machine(pack.weights_path, CpuDevice(1))
    created = profile(Program.as_compiled(pack))
    save_profile(replace(created, manifest=manifest_checksum(pack), machine=machine), pack)


@pytest.fixture(scope="module")
def folder(packs: Packs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Packs with profiles of this machine, and a cfg file."""
    found = tmp_path_factory.mktemp("tables")
    for name in ("tiny", "pair"):
        save(open_pack(copytree(packs.repository / name, found / name)))
    (found / "detector.cfg").write_text(DETECTOR)
    return found


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[], str]:
    """A terminal of 80 columns; returns what is on it."""
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=COLUMNS, color_system="truecolor")
    monkeypatch.setattr(output, "console", lambda: console)
    return lambda: ESCAPES.sub("", file.getvalue())


def numbers_of(text: str) -> list[float]:
    return [float(word.replace(",", "")) for word in NUMBER.findall(text)]


def is_shown(value: float, units: Iterable[int], shown: list[float], tolerance: float) -> bool:
    """Whether a number of a text is ``value`` in one of ``units``."""
    return any(
        abs(value / unit - number) <= min(tolerance, SMALL * value / unit)
        for unit in units
        for number in shown
    )


def check(text: str, rows: list[dict[str, Any]], name: str, keys: tuple[str, ...]) -> None:
    """Check that lines of ``text`` that begin with the name of a row have its numbers."""
    lines = text.splitlines()
    for row in rows:
        own = " ".join(line for line in lines if line.split()[:1] == [str(row[name])])
        for key in keys:
            if row[key] is not None:
                units = SIZES if key.endswith("_bytes") else PLAIN
                tolerance = TOLERANCES.get(key, TOLERANCE)
                shown = is_shown(row[key], units, numbers_of(own), tolerance)
                assert shown, (row[name], key, row[key], own)
    assert not CUT & set(text)
    assert "..." not in text


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_tables_have_the_numbers_of_json(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch, case: Case, request: Any
) -> None:
    monkeypatch.chdir(folder)
    document = cli(*case.arguments, "--json").document
    rows = document[case.rows] if case.rows else document
    assert rows
    piped = cli(*case.arguments).out
    check(piped, rows, case.name, case.numbers)
    terminal = request.getfixturevalue("terminal")
    assert cli(*case.arguments).code == 0
    check(terminal(), rows, case.name, case.numbers)
    lines = terminal().splitlines()
    # What is to be typed is one line, which the terminal folds, so that it can be copied.
    assert max(cell_len(line) for line in lines if not line.startswith("  layerstream")) <= COLUMNS


def test_tables_of_measurements_have_the_numbers_of_json(
    cli: Cli, folder: Path, terminal: Callable[[], str]
) -> None:
    names = ("--architectures", "pre,seq,2s", "--iterations", 1)
    document = cli("bench", "pipeline", folder / "tiny", *names, "--json").document
    bench_tables.print_pipeline(document)
    rows = [
        {**row, **{key: row["delay_ms"][key] for key in ("median", "p95")}}
        for row in document["rows"]
    ]
    check(terminal().partition("energy:")[0], rows, "architecture", (*BENCH, "median", "p95"))


def test_resolutions_have_the_numbers_of_json(terminal: Callable[[], str]) -> None:
    row = {"architecture": "2s", "weight_bytes": 123_456_789, "weight_percent": 4.56}
    row |= {"delay_ms": {"median": 123_456.78, "p95": 234_567.89}, "ratio_to_pre": 1.234}
    runs = [{"resolution": side, "rows": [row]} for side in (224, 1024)]
    bench_tables.print_resolutions({"model": "[bold]m", "runs": runs})
    lines = terminal().splitlines()
    assert [line.split() for line in lines if line.endswith("+23.4")] == [
        [side, "2s", "117.74", "4.6", "123456.78", "234567.89", "+23.4"] for side in ("224", "1024")
    ]


def test_facts_have_the_numbers_of_json(
    cli: Cli, folder: Path, terminal: Callable[[], str]
) -> None:
    document = cli("inspect", folder / "tiny", "--json").document
    assert cli("inspect", folder / "tiny").code == 0
    shown = numbers_of(terminal())
    for key in ("layers", "parameters", "spans", "pieces", "sessions", "labels"):
        assert document[key] in shown, key
    for key in (key for key in document if key.endswith("_bytes")):
        units = (1, *SIZES)
        assert any(abs(document[key] / unit - n) <= 0.11 for unit in units for n in shown), key
    assert not re.search(r"[{}]|_bytes|\d\.\d{4}", terminal())


def test_names_from_a_manifest_are_shown_as_they_are(
    cli: Cli, packs: Packs, tmp_path: Path, terminal: Callable[[], str]
) -> None:
    name = "[/bold][red]x\x1b[2Jtwo\nlines " + "a " * 60 + "日本" * 60
    folder = tmp_path / "packs" / "tiny"
    copytree(packs.repository / "tiny", folder)
    write_document(folder / "1", {**read_document(folder / "1"), "name": name})
    save(open_pack(folder))
    names = ("--architectures", "2s", "--iterations", 1, "--no-peers")
    for arguments in (
        ("inspect", folder),
        ("plan", folder, "--budget", "64MiB", "--explain", "--threads", 1),
        ("simulate", folder, "--threads", 1, "--architectures", "2s,auto"),
        ("bench", "pipeline", folder, "--threads", 1, *names),
    ):
        before = len(terminal())
        result = cli(*arguments)
        assert result.code == 0, result.err
        shown = "".join(terminal()[before:].split())
        assert "".join(printable(name).split()) in shown, arguments


@pytest.mark.slow
def test_a_real_terminal_of_80_columns(cli: Cli) -> None:
    """The only one that finds its width out as users' terminals do."""
    leader, follower = os.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    environment = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
    command = [sys.executable, "-m", "cli", "zoo", "list"]
    got = b""
    with subprocess.Popen(
        command, stdout=follower, stdin=follower, env={**environment, "TERM": "xterm"}
    ):
        os.close(follower)
        while part := _read(leader):
            got += part
    os.close(leader)
    lines = ESCAPES.sub("", got.decode()).splitlines()
    rows = cli("zoo", "list", "--json").document
    check("\n".join(lines), rows, "name", ("parameters", "resolution"))
    assert max(map(cell_len, lines)) <= COLUMNS


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:  # the other end was closed
        return b""
