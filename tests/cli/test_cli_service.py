"""`layerstream service install`: what it derives from a budget, writes, leaves, and refuses."""

import tomllib
from pathlib import Path

import pytest

from cli.service import drop_in
from server.errors import ServiceError
from server.memory.process_memory import process_bytes
from tests.deploy.test_deploy import DEPLOY, MARGIN, MIB, PROCESS_BASE, UNIT, directives
from tests.examples import over
from tests.server.support import BAD, Cli

DROP_IN = "etc/systemd/system/layerstream.service.d/budget.conf"
ROOT = Path(__file__).parents[2]


def derived(budget: int, root: Path) -> dict[str, str]:
    path = root / "drop-in"
    path.write_text(drop_in(budget, root))
    return {name: value for name, (value,) in directives(path).items()}


def mebibytes(text: str) -> int:
    return int(text.removesuffix("M")) * MIB


@over("budget", [16 * MIB, 256 * MIB, 512 * MIB, 100 * MIB + 1])
def test_limits_follow_from_the_budget(budget: int, tmp_path: Path) -> None:
    found = derived(budget, tmp_path)
    most, high = mebibytes(found["MemoryMax"]), mebibytes(found["MemoryHigh"])
    assert 0 <= most - (budget + PROCESS_BASE + MARGIN) < MIB
    assert budget + PROCESS_BASE < high < most
    unit = directives(UNIT)
    assert int(found["LimitNOFILE"]) >= int(unit["LimitNOFILE"][0])


def test_grpc_is_counted_where_the_settings_have_a_port_for_it(tmp_path: Path) -> None:
    settings = tmp_path / "etc/layerstream/layerstream.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text("# grpc_port = 8001\n")
    alone = mebibytes(derived(64 * MIB, tmp_path)["MemoryMax"])
    settings.write_text("grpc_port = 8001\n")
    more = mebibytes(derived(64 * MIB, tmp_path)["MemoryMax"]) - alone
    assert abs(more - (process_bytes(6, grpc=True) - process_bytes(6))) < MIB
    settings.write_text("grpc_port = \n")
    with pytest.raises(ServiceError, match=r"layerstream\.toml:1: not TOML"):
        drop_in(64 * MIB, tmp_path)


def test_the_settings_that_it_is_told_of_are_those_of_the_service(cli: Cli, tmp_path: Path) -> None:
    settings = tmp_path / "etc/mine.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text('grpc_port = 8001\nrepository = "/srv/packs"\n')
    weights = tmp_path / "srv/packs/m/1/weights.bin"
    weights.parent.mkdir(parents=True)
    weights.write_bytes(b"x")
    command = ("service", "install", "--budget", "64MiB", "--root", tmp_path)
    assert cli(*command).code == 0
    alone = directives(tmp_path / DROP_IN)
    assert cli(*command, "--config", "/etc/mine.toml").code == 0
    found = directives(tmp_path / DROP_IN)
    (own,) = directives(UNIT)["ExecStart"]
    theirs = own.replace("/etc/layerstream/layerstream.toml", "/etc/mine.toml")
    assert found["ExecStart"] == ["", theirs]
    more = mebibytes(found["MemoryMax"][0]) - mebibytes(alone["MemoryMax"][0])
    assert abs(more - (process_bytes(6, grpc=True) - process_bytes(6))) < MIB
    assert (alone["IOWeight"], found["IOWeight"]) == (["500"], ["100"])
    cli(*command, "--config", "/etc/none.toml").refuses(BAD, "etc/none.toml: No such file")
    cli(*command, "--config", "mine.toml").refuses(BAD, "--config", "all of its path")


def test_the_unit_has_what_follows_from_its_budget(tmp_path: Path) -> None:
    unit = directives(UNIT)
    found = derived(256 * MIB, tmp_path)
    for name in ("Environment", "MemoryMax", "IOWeight"):
        assert found[name] in unit[name]


@pytest.mark.parametrize(("weights", "share"), [(None, "500"), (MIB, "100"), (9 * MIB, "500")])
def test_reads_outweigh_others_where_weights_stream(
    weights: int | None, share: str, tmp_path: Path
) -> None:
    if weights is not None:
        file = tmp_path / "var/lib/layerstream/models/m/1/weights.bin"
        file.parent.mkdir(parents=True)
        with file.open("wb") as weights_file:
            weights_file.truncate(weights)
    assert derived(8 * MIB, tmp_path)["IOWeight"] == share


def test_units_come_with_it_where_no_package_has_brought_them(cli: Cli, tmp_path: Path) -> None:
    shown = cli("service", "install", "--budget", "64MiB", "--root", tmp_path, "--dry-run")
    assert not list(tmp_path.iterdir())
    assert cli("service", "install", "--budget", "64MiB", "--root", tmp_path).code == 0
    written = {path for path in tmp_path.rglob("*") if path.is_file()}
    for path in written:
        assert path.read_text() in shown.out
    texts = {path.read_text() for path in written - {tmp_path / DROP_IN}}
    with (ROOT / "pyproject.toml").open("rb") as file:
        targets = tomllib.load(file)["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert texts == {(ROOT / name).read_text() for name in targets["force-include"]}


def test_twice_it_says_so_and_a_file_of_the_user_stays(cli: Cli, tmp_path: Path) -> None:
    settings = tmp_path / "etc/layerstream/layerstream.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text("# mine\n")
    command = ("service", "install", "--root", tmp_path, "--budget")
    cli(*command, "64MiB")
    again = cli(*command, "64MiB")
    assert again.out.count("\n") == 1
    assert "is there already" in again.out
    cli(*command, "96MiB")
    assert "LAYERSTREAM_BUDGET=96MiB\n" in (tmp_path / DROP_IN).read_text()
    assert settings.read_text() == "# mine\n"


def test_beside_the_package_it_writes_the_drop_in_alone(cli: Cli, tmp_path: Path) -> None:
    units = tmp_path / "usr/lib/systemd/system"
    units.mkdir(parents=True)
    (units / "layerstream.service").write_text((DEPLOY / "layerstream.service").read_text())
    cli("service", "install", "--root", tmp_path, "--budget", "64MiB")
    assert [path for path in (tmp_path / "etc").rglob("*") if path.is_file()] == [
        tmp_path / DROP_IN
    ]


def test_what_it_refuses(cli: Cli, tmp_path: Path) -> None:
    command = ("service", "install", "--root", tmp_path, "--budget")
    cli(*command, "900TiB").refuses(BAD, "this machine has")
    cli(*command, "much").refuses(BAD, "--budget", "is not a size")
    (tmp_path / "etc").write_text("no folder")
    cli(*command, "64MiB").refuses(BAD, str(tmp_path / DROP_IN), "Not a directory")
