"""``layerstream key``: a key is printed once, the file has its hash; what is wrong is one line."""

import json
from pathlib import Path

from server.access import read_keys
from tests.server.support import BAD, Cli


def test_from_the_first_key_to_the_last(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    added = cli("key", "add", file, "cam")
    key = added.out.strip()
    assert added.out == f"{key}\n"  # for KEY=$(layerstream key add ...)
    assert "SIGHUP" in added.err
    assert key not in added.err + file.read_text()
    held = read_keys(file).find(key.encode())
    assert held is not None
    assert (held.name, held.role) == ("cam", "infer")
    other = json.loads(cli("key", "add", file, "ops", "--role", "admin", "--json").out)
    assert (other["name"], other["role"]) == ("ops", "admin")
    listed = cli("key", "list", file, "--json")
    assert json.loads(listed.out) == [
        {"name": "cam", "role": "infer"},
        {"name": "ops", "role": "admin"},
    ]
    shown = cli("key", "list", file).out
    assert "cam" in shown
    assert "sha256" not in shown
    assert "cam: removed" in cli("key", "remove", file, "cam").out
    assert json.loads(cli("key", "remove", file, "ops", "--json").out)["removed"]
    assert len(read_keys(file)) == 0


def test_what_is_wrong_is_one_line(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    cli("key", "list", file).refuses(BAD, "No such file")
    cli("key", "add", file, "cam", "--role", "root").refuses(BAD, "infer or admin")
    cli("key", "add", file, "not a name").refuses(BAD, "name")
    cli("key", "remove", file, "cam").refuses(BAD, "No such file")
    assert not file.exists()
    cli("key", "add", file, "cam")
    cli("key", "add", file, "cam").refuses(BAD, "already")
    cli("key", "remove", file, "nobody").refuses(BAD, "no key 'nobody'")
    cli("serve", "--repository", tmp_path, "--budget", "16MiB", "--keys", tmp_path).refuses(BAD)
