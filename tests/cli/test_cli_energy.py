"""Energy in what ``run`` and ``bench pipeline`` print, on fake trees of sysfs files."""

import re
from pathlib import Path

import pytest

from pipeline.energy import find_meter
from tests.server.support import Cli, Packs, picture

NOTHING = "not available here: no INA3221 power rails, no RAPL packages"


@pytest.fixture
def sysfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the commands find instead of /sys."""
    monkeypatch.setattr("cli.run.find_meter", lambda: find_meter(tmp_path))
    monkeypatch.setattr("cli.bench.find_meter", lambda: find_meter(tmp_path))
    return tmp_path


def make_rail(root: Path) -> None:
    folder = root / "bus/i2c/devices/1-0040/hwmon/hwmon3"
    folder.mkdir(parents=True)
    files = {"name": "ina3221", "in1_label": "[GPU]", "in1_input": "5000", "curr1_input": "2000"}
    for name, text in files.items():
        (folder / name).write_text(f"{text}\n", encoding="ascii")


def test_run(cli: Cli, packs: Packs, sysfs: Path) -> None:
    image = sysfs / "cat.png"
    image.write_bytes(picture())
    arguments = ("run", packs.repository / "tiny", "--image", image)
    document = cli(*arguments, "--json").document
    assert (document["energy"], document["energy_joules"]) == (NOTHING, None)
    assert "energy" not in cli(*arguments).out
    make_rail(sysfs)
    shown = cli(*arguments).out
    assert re.fullmatch(r"energy: ina3221: \[GPU\]; \d+\.\d{3} J", shown.splitlines()[-1])
    document = cli(*arguments, "--json").document
    assert document["energy"] == "ina3221: [GPU]"
    # 10 watts, for at least as long as the sweep took.
    assert document["energy_joules"] >= document["delay_ms"] / 100


def test_bench_pipeline(cli: Cli, packs: Packs, sysfs: Path) -> None:
    arguments = ("bench", "pipeline", packs.repository / "tiny", "--iterations", 2, "--no-peers")
    shown = cli(*arguments).out
    assert shown.splitlines()[-1] == f"energy: {NOTHING}"
    make_rail(sysfs)
    shown = cli(*arguments).out
    assert shown.splitlines()[-1].startswith("energy: ina3221: [GPU]; pre ")
    document = cli(*arguments, "--json").document
    assert document["energy"] == "ina3221: [GPU]"
    for row in document["rows"]:
        joules, delay = row["energy_joules"], row["delay_ms"]
        assert joules["median"] >= delay["median"] / 100
        assert joules["max"] >= delay["max"] / 100
