"""What is asked for without a service: which paths are open, and how a key is looked up."""

import contextlib
from pathlib import Path

import pytest

from server.access import keys
from server.access.guard import Access, UnknownKeyError
from server.access.key_file import KeyFileError, add_key, remove_key
from server.access.keys import Keys
from server.routes import TABLE


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
    assert not access.admits("infer")
    with pytest.raises(UnknownKeyError):
        access.key([f"Bearer {key}"])


@pytest.mark.parametrize("public", [False, True])
def test_metrics_are_open_by_a_setting(tmp_path: Path, public: bool) -> None:
    add_key(tmp_path / "keys", "a", "infer")
    access = Access(tmp_path / "keys", public_metrics=public)
    assert access.admits("metrics") == public
    assert access.admits("open")
    assert not access.admits("infer")
    assert not access.admits(None)
    assert Access().admits(None)


def test_what_is_open_is_told_by_the_table() -> None:
    """And no path beside: one that looks like it is none of this server."""
    opened = {path: found.admitted for path in PATHS if (found := TABLE.find(path))}
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
    access = Access(tmp_path / "keys")

    def watched(known: bytes, wanted: bytes) -> bool:
        compared.append(known)
        return known == wanted

    monkeypatch.setattr(keys, "compare_digest", watched)
    counts = []
    for headers in ([f"Bearer {add[0]}"], [f"Bearer {add[2]}"], ["Bearer x"], ["x"], []):
        compared.clear()
        with contextlib.suppress(UnknownKeyError):
            access.key(headers)
        counts.append(len(compared))
    assert counts == [3] * 5
    assert Keys([]).find(b"") is None
