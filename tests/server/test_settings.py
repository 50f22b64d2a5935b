"""Settings: where they come from, which wins, and that a wrong one is named. Sizes."""

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from server.settings import Settings, SettingsError, load_settings
from server.sizes import format_least, format_size, parse_size

NEEDED: dict[str, object] = {"repository": "/packs", "budget": "256MiB"}


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    path = tmp_path / "layerstream.toml"
    path.write_text('repository = "/toml"\nbudget = "3MiB"\nport = 3\nhost = "toml"\n')
    return path


def test_defaults() -> None:
    settings = load_settings(dict(NEEDED))
    assert settings.repository == Path("/packs")
    assert settings.budget == 256 << 20
    assert (settings.host, settings.port) == ("127.0.0.1", 8080)
    assert settings.architecture == "auto"
    assert settings.max_body == 64 << 20
    assert settings.models == ()


def test_precedence(toml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAYERSTREAM_PORT", "2")
    monkeypatch.setenv("LAYERSTREAM_BUDGET", "2MiB")
    settings = load_settings({"budget": "1MiB", "host": None}, toml)
    assert settings.budget == 1 << 20  # flag over variable over file
    assert settings.port == 2  # variable over file
    assert settings.host == "toml"  # file over default; a flag not given is none
    assert settings.queue_limit == 16


def test_the_file_may_be_named_by_a_variable(toml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAYERSTREAM_CONFIG", str(toml))
    assert load_settings({}).port == 3


def test_an_empty_host_is_refused_wherever_it_comes_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The socket would take it for every address of the machine."""
    path = tmp_path / "layerstream.toml"
    path.write_text('host = ""')
    with pytest.raises(SettingsError, match=r"host: empty; 127\.0\.0\.1 .* 0\.0\.0\.0"):
        load_settings(dict(NEEDED), path)
    monkeypatch.setenv("LAYERSTREAM_HOST", "  ")
    with pytest.raises(SettingsError, match="host: empty"):
        load_settings(dict(NEEDED))


def test_variables_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "REPOSITORY": "/env",
        "BUDGET": "24 MB",
        "MODELS": "a,b",
        "EXIT_ON_ERROR": "true",
        "REQUEST_TIMEOUT": "0.5",
    }.items():
        monkeypatch.setenv(f"LAYERSTREAM_{name}", value)
    settings = load_settings({})
    assert settings.budget == 24_000_000
    assert settings.models == ("a", "b")
    assert settings.exit_on_error is True
    assert settings.request_timeout == 0.5


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("budget", "lots"),
        ("budget", "0"),
        ("budget", "-1MiB"),
        ("budget", ""),
        ("budget", "1XB"),
        ("max_body", "none"),
        ("host", ""),
        ("host", " \t"),
        ("port", 65536),
        ("port", -1),
        ("port", "http"),
        ("architecture", "3s"),
        ("threads", 0),
        ("verify", "never"),
        ("queue_limit", 0),
        ("request_timeout", 0),
        ("request_timeout", -1.0),
        ("log_format", "xml"),
        ("max_image_pixels", 0),
        ("colour", "red"),
    ],
)
def test_a_wrong_value_is_named(field: str, value: object) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings({**NEEDED, field: value})
    message = str(caught.value)
    assert message.startswith(f"{field}: ")
    assert "\n" not in message


@pytest.mark.parametrize("field", ["repository", "budget"])
def test_what_is_missing_is_named_with_the_ways_to_give_it(field: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings({name: value for name, value in NEEDED.items() if name != field})
    message = str(caught.value)
    assert message.startswith(f"{field}: ")
    assert f"--{field}" in message
    assert f"LAYERSTREAM_{field.upper()}" in message


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('colour = "red"', "colour"),
        ('budget = "lots"', "budget"),
        ("port = 70000", "port"),
        ("port = ", "layerstream.toml"),
        ("\udcff", "layerstream.toml"),
        ("[server]\nport = 1", "server"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, text: str, word: str) -> None:
    path = tmp_path / "layerstream.toml"
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    given = {name: value for name, value in NEEDED.items() if name not in text}
    with pytest.raises(SettingsError, match=word):
        load_settings(given, path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"none\.toml: no such"):
        load_settings(dict(NEEDED), tmp_path / "none.toml")


@pytest.mark.parametrize(("name", "value"), [("PORT", "x"), ("BUDGET", "1 Q")])
def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"LAYERSTREAM_{name}", value)
    needed = {field: value for field, value in NEEDED.items() if field != name.lower()}
    with pytest.raises(SettingsError, match=name.lower()):
        load_settings(needed)


def test_settings_do_not_change() -> None:
    settings = load_settings(dict(NEEDED))
    with pytest.raises(ValueError, match="frozen"):
        settings.port = 1  # type: ignore[misc]


UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "KB": 10**3, "MB": 10**6}


@given(number=st.integers(1, 10**6), unit=st.sampled_from(sorted(UNITS)), space=st.booleans())
def test_sizes_with_units(number: int, unit: str, space: bool) -> None:
    text = f"{number}{' ' if space else ''}{unit}"
    expected = number * UNITS[unit]
    assert parse_size(text) == expected
    assert parse_size(text.lower()) == expected
    assert load_settings({**NEEDED, "budget": text}).budget == expected


@given(n_bytes=st.integers(1 << 20, 1 << 62))
def test_sizes_in_bytes(n_bytes: int) -> None:
    assert parse_size(str(n_bytes)) == n_bytes


@given(n_bytes=st.integers(1, (1 << 20) - 1))
def test_small_sizes_need_a_unit(n_bytes: int) -> None:
    """Whoever writes ``--budget 16`` does not mean 16 bytes."""
    with pytest.raises(ValueError, match=f"write {n_bytes}MiB, {n_bytes}KiB or {n_bytes}B"):
        parse_size(str(n_bytes))
    assert parse_size(f"{n_bytes}B") == n_bytes


def test_no_minimum_can_be_shown() -> None:
    assert format_least(0) == "0 B"


@given(n_bytes=st.integers(1, 1 << 50))
@example(n_bytes=16_921_311)  # 16.1 MiB when rounded down
def test_a_minimum_that_is_shown_is_enough_when_typed_back(n_bytes: int) -> None:
    shown = format_least(n_bytes)
    assert n_bytes <= parse_size(shown) <= n_bytes * 1.11 + 1


@given(n_bytes=st.integers(1, 1 << 50))
def test_what_is_shown_reads_back_as_about_the_same(n_bytes: int) -> None:
    shown = format_size(n_bytes)
    assert abs(parse_size(shown) - n_bytes) <= n_bytes * 0.06
    assert len(shown) < 16


@given(few=st.integers(0, 1 << 40), more=st.integers(0, 1 << 20))
def test_the_unit_grows_with_the_size(few: int, more: int) -> None:
    units = ["B", "KiB", "MiB", "GiB"]
    first, second = (format_size(n_bytes).split()[1] for n_bytes in (few, few + more))
    assert units.index(first) <= units.index(second)


@given(text=st.text())
def test_no_text_breaks_sizes(text: str) -> None:
    try:
        assert parse_size(text) > 0
    except ValueError as exc:
        assert repr(text) in str(exc)  # noqa: PT017  most texts are no sizes, some are


def test_every_setting_is_a_variable_and_says_what_is_wrong() -> None:
    assert Settings.model_config["env_prefix"] == "LAYERSTREAM_"
    assert Settings.model_config["extra"] == "forbid"
