"""Keys: how one is looked up, which paths are open without one, and the file of keys."""

import contextlib
import json
import os
import stat
import string
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server import access
from server.access import (
    MOST_KEYS,
    ROLES,
    Access,
    Key,
    KeyFileError,
    Keys,
    add_key,
    digest,
    list_keys,
    new_key,
    parse_keys,
    read_keys,
    remove_key,
    written,
)
from server.app import routes_of
from server.errors import UnknownKeyError
from server.protocol.routing import RulesOfPaths
from tests.examples import over
from tests.server.conftest import SettingsFactory
from tests.server.support import BAD, Cli


def test_a_file_without_keys_opens_nothing(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# none\n")
    with pytest.raises(KeyFileError, match="nobody could use"):
        Access(file)
    key = add_key(file, "a", "infer")
    access = Access(file)
    remove_key(file, "a")
    access.reload()
    assert access.wants_keys
    assert "infer" not in access.keyless
    with pytest.raises(UnknownKeyError):
        access.key([f"Bearer {key}"])


@pytest.mark.parametrize("public", [False, True])
def test_metrics_are_open_by_a_setting(tmp_path: Path, public: bool) -> None:
    add_key(tmp_path / "keys", "a", "infer")
    access = Access(tmp_path / "keys", public_metrics=public)
    assert ("metrics" in access.keyless) == public
    assert "open" in access.keyless
    assert "infer" not in access.keyless
    assert None not in access.keyless
    assert None in Access().keyless


def test_routes_decide_what_is_open(settings: SettingsFactory) -> None:
    """And no path beside: one that looks like it is none of this server."""
    rules = RulesOfPaths(routes_of(settings()))
    opened = {path: rules.find(path, "GET").admitted for path in PATHS}
    assert {path for path, to in opened.items() if to == "open"} == {
        *("/", "/v2/health/live", "/v2/health/ready", "/page/files/main.js")
    }
    assert {path for path, to in opened.items() if to == "metrics"} == {"/metrics"}


PATHS = [
    *(
        "/",
        "",
        "//",
        "/v2",
        "/v2/health",
        "/v2/health/live",
        "/v2/health/ready",
        "//v2/health/live",
    ),
    *(
        "/v2/health/live/../ready",
        "/v2/health/live/",
        "/metrics",
        "/metrics/",
        "/page/files/main.js",
    ),
    *("/page/files/../routes.py", "/page/files/", "/page/events", "/docs", "/v2/models/health"),
    *("/page/models/a/frontier", "/v2/models/a/infer", "/v2/repository/models/a/load"),
]


def test_the_same_work_whether_a_key_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every known hash is compared, whichever fits: nothing of the answer's time says which."""
    compared: list[bytes] = []
    add = [add_key(tmp_path / "keys", name, "infer") for name in ("a", "b", "c")]
    guard = Access(tmp_path / "keys")

    def watched(known: bytes, wanted: bytes) -> bool:
        compared.append(known)
        return known == wanted

    monkeypatch.setattr(access, "compare_digest", watched)
    counts = []
    for headers in ([f"Bearer {add[0]}"], [f"Bearer {add[2]}"], ["Bearer x"], ["x"], []):
        compared.clear()
        with contextlib.suppress(UnknownKeyError):
            guard.key(headers)
        counts.append(len(compared))
    assert counts == [3] * 5
    assert Keys([]).find(b"") is None


# The file of keys: what is written is read, what is wrong is named by its line and never quoted.

HASH = "sha256:" + "0f" * 32
LETTERS = string.ascii_letters + string.digits
NAMES = st.builds(str.__add__, st.sampled_from(LETTERS), st.text(f"{LETTERS}._-", max_size=63))
KEYS = st.lists(
    st.builds(Key, NAMES, st.sampled_from(ROLES), st.binary(min_size=32, max_size=32)),
    unique_by=(lambda key: key.name, lambda key: key.digest),
    max_size=8,
)
BETWEEN = st.sampled_from(["", "\n", "# ops admin sha256:\n", "  \t\n"])


@given(keys=KEYS, between=BETWEEN)
def test_what_is_written_is_read(keys: list[Key], between: str) -> None:
    text = between + between.join(map(written, keys))
    assert parse_keys(text) == tuple(keys)


@given(text=st.text(alphabet=st.characters(max_codepoint=127)))
def test_any_text_is_keys_or_an_error_with_a_line(text: str) -> None:
    try:
        parse_keys(text)
    except ValueError as exc:
        number, _, rest = str(exc).partition(": ")
        assert 1 <= int(number) <= len(text.splitlines())
        assert rest


@over(
    "line, words",
    [
        ("ops", "three words"),
        (f"ops admin {HASH} x", "three words"),
        (f"-ops admin {HASH}", "name"),
        (f"{'n' * 65} admin {HASH}", "name"),
        (f"n/a admin {HASH}", "name"),
        (f"ops root {HASH}", "infer or admin"),
        (f"ops Admin {HASH}", "infer or admin"),
        ("ops admin sha256:00", "hash"),
        (f"ops admin {HASH.upper()}", "hash"),
        (f"ops admin {HASH[7:]}", "hash"),
        (f"ops admin scrypt:{HASH[7:]}", "hash"),
    ],
)
def test_a_wrong_line_is_named_and_not_quoted(line: str, words: str) -> None:
    with pytest.raises(ValueError, match=f"^2: .*{words}") as caught:
        parse_keys(f"# first\n{line}\n")
    assert not {word for word in line.split() if len(word) > 8} & set(str(caught.value).split())


@pytest.mark.parametrize("second", [f"a infer sha256:{'1' * 64}", f"b infer {HASH}"])
def test_a_name_or_a_key_twice(second: str) -> None:
    with pytest.raises(ValueError, match=r"2: .*line 1"):
        parse_keys(f"a admin {HASH}\n{second}\n")


@pytest.mark.parametrize("role", ROLES)
def test_a_key_is_known_by_its_hash_and_its_text_is_nowhere(tmp_path: Path, role: str) -> None:
    path = tmp_path / "keys"
    key = add_key(path, "cam.1", "admin" if role == "admin" else "infer")
    found = read_keys(path).find(key.encode())
    assert found is not None
    assert (found.name, found.role) == ("cam.1", role)
    assert key not in path.read_text() + repr(found) + repr(read_keys(path))
    assert digest(key.encode()).hex() in path.read_text()
    assert repr(found.digest) not in repr(found)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for wrong in (b"", key[:-1].encode(), key.encode() + b"x", new_key().encode(), b"\xff" * 99):
        assert read_keys(path).find(wrong) is None


def test_adding_and_removing_leave_the_rest_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"# ours\nops admin {HASH}")  # without an end of line
    path.chmod(0o640)
    add_key(path, "cam", "infer")
    assert [key.name for key in list_keys(path)] == ["ops", "cam"]
    remove_key(path, "cam")
    assert path.read_text() == f"# ours\nops admin {HASH}\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    for wrong, words in (("ops", "already"), ("a b", "name"), ("", "name"), ("#x", "name")):
        with pytest.raises(KeyFileError, match=words):
            add_key(path, wrong, "infer")
    with pytest.raises(KeyFileError, match="no key 'nobody'"):
        remove_key(path, "nobody")
    assert [entry.name for entry in tmp_path.iterdir()] == ["keys"]


def test_commands_at_once_lose_no_key(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    names = [f"k{number}" for number in range(12)]
    adding = [threading.Thread(target=add_key, args=(path, name, "infer")) for name in names]
    for thread in adding:
        thread.start()
    for thread in adding:
        thread.join()
    assert sorted(key.name for key in list_keys(path)) == sorted(names)


def test_what_is_no_file_of_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "_MOST_BYTES", 1 << 10)
    path = tmp_path / "keys"

    def refused(words: str) -> None:
        with pytest.raises(KeyFileError, match=words) as caught:
            read_keys(path)
        assert str(caught.value).startswith(str(path))
        assert "\n" not in str(caught.value)

    refused("No such file")
    path.mkdir()
    refused("directory|not a file")
    path.rmdir()
    os.mkfifo(path)
    refused("not a file")
    path.unlink()
    path.write_bytes(b"\xff")
    refused("ASCII")
    path.write_bytes(b"#" * 2000)
    refused("longer")
    path.write_text(f"ops admin {HASH}\nnonsense\n")
    refused(":2: not three words")
    path.write_text("")
    path.chmod(0o606)
    refused("everybody may write")


def test_a_file_has_so_many_keys_and_no_more() -> None:
    lines = [f"k{n} infer sha256:{n:064x}\n" for n in range(MOST_KEYS + 1)]
    assert len(parse_keys("".join(lines[:-1]))) == MOST_KEYS
    with pytest.raises(ValueError, match=f"over {MOST_KEYS}"):
        parse_keys("".join(lines))


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("")
    (tmp_path / "keys").symlink_to("real")
    add_key(tmp_path / "keys", "a", "infer")
    assert (tmp_path / "keys").is_symlink()
    assert len(list_keys(tmp_path / "real")) == 1


# The command that makes keys.


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
