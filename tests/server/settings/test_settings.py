"""Settings: where they come from, which wins, and that a wrong one is named. Sizes."""

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from models.sizes import format_least, format_size, parse_size
from server.errors import shown
from server.settings.settings import Settings, SettingsError, load_settings, warn_of_variables
from server.settings.table import Setting, markdown, settings_table
from tests.examples import over

ROOT = Path(__file__).parents[3]
LONGEST = 1000
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


@pytest.mark.parametrize(
    ("text", "names"), [("a,b", ("a", "b")), (" a, b,", ("a", "b")), ("a", ("a",)), ("", ())]
)
def test_names_are_separated_by_commas(
    text: str, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load_settings({**NEEDED, "models": text}).models == names
    monkeypatch.setenv("LAYERSTREAM_MODELS", text)
    assert load_settings(dict(NEEDED)).models == names


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
    with pytest.raises(SettingsError, match="LAYERSTREAM_HOST: empty"):
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


@over(
    "field, value",
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
        ("threads", 1025),
        ("device", "tpu"),
        ("verify", "never"),
        ("queue_limit", 0),
        ("request_timeout", 0),
        ("request_timeout", -1.0),
        ("request_timeout", "nan"),
        ("drain_timeout", "inf"),
        ("idle_timeout", "1e300"),
        ("log_format", "xml"),
        ("max_image_pixels", 0),
        ("unix_socket_mode", "999"),
        ("unix_socket_mode", "77"),
        ("unix_socket_mode", "rw"),
        ("tls_key", "key.pem"),
        ("traces", "localhost:4318"),
        ("colour", "red"),
    ],
)
def test_a_wrong_value_is_named(field: str, value: object) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings({**NEEDED, field: value})
    message = str(caught.value)
    assert message.startswith(f"--{field.replace('_', '-')}: ")
    assert field == "colour" or shown(str(value)) in message
    assert "\n" not in message
    assert len(message) < LONGEST


@pytest.mark.parametrize("field", ["repository", "budget"])
def test_what_is_missing_is_named_with_the_ways_to_give_it(field: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings({name: value for name, value in NEEDED.items() if name != field})
    message = str(caught.value)
    assert message.startswith(f"{field}: ")
    assert f"--{field}" in message
    assert f"LAYERSTREAM_{field.upper()}" in message


@over(
    "text, place, words",
    [
        ('# hi\ncolour = "red"', ":2: colour", "no such setting"),
        ("queue_limits = 1", ":1: queue_limits", "did you mean queue_limit?"),
        ('\n\n  budget= "lots"', ":3: budget", "'lots' is not a size"),
        ("max_body = 0\nport = 70000", ":2: port", ":1: max_body: '0' is not a size"),
        ("budget = 16", ":1: budget", "'16' has no unit; write 16MiB"),
        ("budget = true", ":1: budget", "'True' is not a size"),
        ("threads = true", ":1: threads", "true or false is for switches"),
        ('host = "a"\n"port" = "x"', ":2: port", "not 'x'"),
        ("models.first = 'a'", ":1: models", "should be a valid tuple"),
        ("threads = 2\nport = ", ":2", "not TOML: Invalid value"),
        ("port = 1\nport = 2", ":2", "Cannot overwrite"),
        ("models = [", ":1", "not TOML"),
        (f"models = {'[' * 9999}", ": not TOML that", "too deep"),
        (f"port = {'9' * 9999}", ": not TOML that", "too long"),
        (f"port = 0x{'f' * 9999}", ":1: port", "less than or equal to 65535"),
        ("port = 1\n#\udcff", ":2", "not UTF-8: byte 0xff"),
        ("[server]\nport = 1", ":1: server", "no such setting"),
        (f'"{"x" * 9999}\\u001b" = 1', ": xxx", "xxx...: no such setting"),
        ('"a\\u001bb" = 1', ": a\\x1bb", "no such setting"),
        (f'log_format = "{"x" * 9999}"', ":1: log_format", "'text' or 'json'"),
        ("\n".join(f"k{number} = 1" for number in range(99)), ":1: k0", "and 94 more"),
    ],
)
def test_what_is_wrong_in_the_file_has_a_line(
    tmp_path: Path, text: str, place: str, words: str
) -> None:
    path = tmp_path / "layerstream.toml"
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    given = {name: value for name, value in NEEDED.items() if name not in text}
    with pytest.raises(SettingsError) as caught:
        load_settings(given, path)
    message = str(caught.value)
    assert message.startswith(f"{path}{place}")
    assert words in message
    assert message.isprintable()
    assert len(message) < LONGEST


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("none.toml", "no such"),
        (".", "no such"),
        ("big", "larger than"),
        pytest.param("x" * 300, "File name too long", id="long"),
    ],
)
def test_a_file_that_is_none_is_named(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "big").write_bytes(b"#" * (2 << 20))
    with pytest.raises(SettingsError, match=f"{tmp_path / name}: {words}"):
        load_settings(dict(NEEDED), tmp_path / name)


@pytest.mark.parametrize(
    ("name", "value"), [("PORT", "x"), ("BUDGET", "1 Q"), ("THREADS", ""), ("budget", "much")]
)
def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"LAYERSTREAM_{name}", value)
    needed = {field: value for field, value in NEEDED.items() if field != name.lower()}
    with pytest.raises(SettingsError, match=f"^LAYERSTREAM_{name}: .*'{value}'"):
        load_settings(needed)


def test_what_is_overridden_is_not_read(toml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault is looked for where the value that counts was given."""
    toml.write_text(toml.read_text().replace("port = 3", "port = 99999"))
    monkeypatch.setenv("LAYERSTREAM_PORT", "0")
    assert load_settings({}, toml).port == 0
    monkeypatch.setenv("LAYERSTREAM_PORT", "-1")
    assert load_settings({"port": "7"}, toml).port == 7


def test_an_address_of_a_service_of_kubernetes_is_no_port(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LAYERSTREAM_PORT", "tcp://10.0.0.1:8080")
    assert load_settings(dict(NEEDED)).port == 8080
    warn_of_variables()
    assert caplog.messages == ["variables that are no setting: LAYERSTREAM_PORT"]
    monkeypatch.setenv("LAYERSTREAM_PORT", "808O")
    with pytest.raises(SettingsError, match="LAYERSTREAM_PORT"):
        load_settings(dict(NEEDED))


def test_a_misspelt_variable_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No error: a platform may put variables there that it names after a service."""
    monkeypatch.setenv("LAYERSTREAM_CONFIG", "")
    warn_of_variables()
    assert not caplog.records
    monkeypatch.setenv("LAYERSTREAM_BUGDET", "1GiB")
    monkeypatch.setenv("LAYERSTREAM_PORT_8080_TCP", "tcp://10.0.0.1:8080")
    load_settings(dict(NEEDED))
    warn_of_variables()
    assert "LAYERSTREAM_BUGDET (did you mean LAYERSTREAM_BUDGET?)" in caplog.text
    assert "LAYERSTREAM_PORT_8080_TCP" in caplog.text
    with pytest.raises(
        SettingsError, match=r"^budget: not given.*LAYERSTREAM_BUGDET \(did you mean"
    ):
        load_settings({"repository": "/packs"})


def test_memory_of_the_caller_counts_where_there_is_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert load_settings({"repository": "/packs"}, memory=lambda: 1 << 30).memory == 1 << 30
    assert (
        load_settings({"repository": "/packs", "budget": "1MiB"}, memory=lambda: 1).memory is None
    )
    with pytest.raises(SettingsError, match=r"^budget: not given"):
        load_settings({"repository": "/packs"}, memory=lambda: 0)  # what is free is not known
    monkeypatch.setenv("LAYERSTREAM_MEMORY", "1MiB")
    assert load_settings({"repository": "/packs"}, memory=lambda: 1).memory == 1 << 20


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


@over("text", ["256MiB/s", "256MiB, or so", "1e8", "16 MiB 4", "256MiB;", "0x100"])
def test_what_follows_a_size_is_no_part_of_it(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)
    with pytest.raises(SettingsError, match="budget"):
        load_settings({**NEEDED, "budget": text})


@given(n_bytes=st.integers(1 << 20, 1 << 62))
def test_sizes_in_bytes(n_bytes: int) -> None:
    assert parse_size(str(n_bytes)) == n_bytes


@given(n_bytes=st.integers(1, (1 << 20) - 1))
def test_small_sizes_need_a_unit(n_bytes: int) -> None:
    """A user who writes ``--budget 16`` does not mean 16 bytes."""
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


def test_the_table_in_the_documentation_is_that_of_the_settings() -> None:
    """docs/reference/settings.md: replace its table by what ``python -m server.settings.table`` prints."""
    assert markdown() in (ROOT / "docs/reference/settings.md").read_text()


def test_every_setting_is_described() -> None:
    table = settings_table()
    assert [item.name for item in table] == list(Settings.model_fields)
    for item in table:
        assert item.meaning.endswith((".", "...")), item
        required = Settings.model_fields[item.name].is_required()
        assert bool(item.default) != required, item


@over("item", settings_table())
def test_a_default_that_is_written_out_is_the_default(item: Setting) -> None:
    if item.default and " " not in item.default.removesuffix(" s") and item.default != "all":
        written = load_settings({**NEEDED, item.name: item.default.removesuffix(" s")})
        assert written == load_settings(dict(NEEDED))


def test_what_tls_needs() -> None:
    pair = {**NEEDED, "tls_certificate": "c.pem", "tls_key": "k.pem"}
    assert load_settings(pair).tls_key == Path("k.pem")
    assert load_settings({**NEEDED, "tls_certificate": "c.pem"}).tls_key is None
    with pytest.raises(
        SettingsError, match=r"^--tls-certificate: 'c.pem': no TLS on a Unix socket"
    ) as caught:
        load_settings({**pair, "unix_socket": "s"})
    assert ";" not in str(caught.value)  # nothing else is wrong
