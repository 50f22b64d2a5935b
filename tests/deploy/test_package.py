"""The Debian package and the container agree with the command line, the unit and the settings."""

import json
import os
import re
import runpy
import shutil
import subprocess
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from cli.commands import COMMANDS
from server.settings.settings import Settings
from server.settings.table import settings_table
from tests.deploy.test_deploy import DEPLOY, MARGIN, MIB, PROCESS_BASE, UNIT, directives, run, tool
from tests.examples import over

ROOT = DEPLOY.parent
CONTAINER = DEPLOY / "container"
DOCKERFILE = (CONTAINER / "Dockerfile").read_text()
COMPOSE = (CONTAINER / "compose.yaml").read_text()


def test_the_socket_listens_where_the_server_would() -> None:
    socket, fields = directives(DEPLOY / "layerstream.socket"), Settings.model_fields
    assert socket["ListenStream"] == [f"{fields['host'].default}:{fields['port'].default}"]
    unit = directives(UNIT)
    assert "layerstream.socket" in unit["Wants"]
    assert unit["Also"] == ["layerstream.socket"]


def test_a_server_keeps_its_program_while_an_upgrade_replaces_it() -> None:
    """A script moves the folder away that the unit binds, so that must not be bound in its place."""
    unit = directives(UNIT)
    (folder,) = unit["BindReadOnlyPaths"]
    assert unit["AssertFileIsExecutable"][0].startswith(f"{folder}/")
    assert unit["TemporaryFileSystem"] == [f"{Path(folder).parent}:ro"]
    assert f"mv {folder} {folder}.previous" in (DEPLOY / "debian" / "preinst").read_text()


def test_user_and_folders_are_those_of_the_unit_and_the_settings() -> None:
    (user,) = directives(UNIT)["User"]
    assert (DEPLOY / "layerstream.sysusers").read_text().split()[:2] == ["u", user]
    folders = (DEPLOY / "layerstream.tmpfiles").read_text()
    (models,) = re.findall(r'^repository = "(.*)"', (DEPLOY / "layerstream.toml").read_text(), re.M)
    assert f"d {models} 2750 root {user}\n" in folders
    assert f"RequiresMountsFor={models}\n" in UNIT.read_text()


@over("script", ["build.sh", "preinst", "postinst", "prerm", "postrm"])
def test_scripts_are_of_the_shell(script: str) -> None:
    run("/bin/sh", "-n", DEPLOY / "debian" / script)
    run("/bin/sh", "-n", DEPLOY / "tree.sh")


@pytest.fixture(scope="module")
def manual() -> str:
    with redirect_stdout(StringIO()) as printed:
        runpy.run_path(str(DEPLOY / "debian" / "man.py"), run_name="__main__")
    return printed.getvalue()


def test_the_manual_has_every_command_and_every_setting(manual: str) -> None:
    page = manual.replace(r"\-", "-")
    assert page.startswith(".TH LAYERSTREAM 1 ")
    for name, command in COMMANDS.items():
        assert re.search(rf"^\.SS layerstream {name}\b", page, re.M), name
        assert command.function == "" or command.help in page.replace(r"\&", "")
    for setting in settings_table():
        assert f"\\fB{setting.flag}\\fR" in page


@pytest.mark.tools
def test_the_manual_is_one(manual: str, tmp_path: Path) -> None:
    (tmp_path / "page.1").write_text(manual)
    assert "warning" not in run(tool("man"), "--warnings", "-l", tmp_path / "page.1")


def test_the_image_has_settings_no_rights_and_a_probe() -> None:
    known = {f"LAYERSTREAM_{name}".upper() for name in Settings.model_fields}
    assert set(re.findall(r"LAYERSTREAM_[A-Z_]+", DOCKERFILE)) <= known
    assert re.search(r"^USER \d+$", DOCKERFILE, re.M)
    assert "HEALTHCHECK" in DOCKERFILE
    assert "ORT_DISABLE_TELEMETRY=1" in DOCKERFILE
    assert "deploy/tree.sh /opt/layerstream" in DOCKERFILE


def test_compose_gives_what_the_unit_gives_and_mounts_what_is_there() -> None:
    (budget,) = re.findall(r"LAYERSTREAM_BUDGET: (\d+)MiB", COMPOSE)
    (limit,) = re.findall(r"\bmem_limit: (\d+)m", COMPOSE)
    assert int(limit) * MIB == int(budget) * MIB + PROCESS_BASE + MARGIN
    assert "read_only: true" in COMPOSE
    mounted = re.findall(r"^ +- (\.[^:]*):", COMPOSE, re.M)
    assert len(mounted) == 4
    assert all((CONTAINER / path).exists() for path in mounted)


def test_compose_has_no_key_that_debian_s_program_refuses() -> None:
    """docker-compose 1.29 knows these, of those that stand at the top, and no ``name``."""
    known = {"version", "services", "networks", "volumes", "secrets", "configs"}
    assert set(re.findall(r"^(\w+):", COMPOSE, re.M)) <= known


@pytest.mark.tools
@pytest.mark.slow
def test_a_package_is_made_of_this_checkout(tmp_path: Path) -> None:
    tool("dpkg-deb")
    if not (ROOT / ".venv" / "bin" / "layerstream").exists():
        pytest.skip("make deb installs the project into .venv first; it is not there")
    plain = {"VERSION": "0~test", "DPKG_DEB_COMPRESSOR_TYPE": "none"}
    made = subprocess.run(
        ["/bin/sh", DEPLOY / "debian" / "build.sh"],
        env={"PATH": os.environ["PATH"], "HOME": str(Path.home()), **plain},
        check=True,
        capture_output=True,
        text=True,
        timeout=900,
    )
    package = ROOT / made.stdout.partition(":")[0]
    run("dpkg-deb", "--extract", package, tmp_path / "root")
    package.unlink()
    program = tmp_path / "root" / "opt" / "layerstream"
    for name in ("elementwise", "reads"):
        assert len(list(program.rglob(f"{name}-*.so"))) == 1
    python = shutil.which("python3.11") or pytest.skip("there is no Python 3.11")
    found = run(
        *("/usr/bin/env", f"PYTHONPATH={program}/lib/python3.11/site-packages", python, "-P", "-c"),
        "import json, sys; from cli.process import main; import server; sys.argv = ['', '--version']\n"
        "print(json.dumps(server.__file__), flush=True); main()",
    ).splitlines()
    assert json.loads(found[0]).startswith(str(program))
    assert found[1].startswith("layerstream ")
