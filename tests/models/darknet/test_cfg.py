"""Texts of cfg files: what is a section, an option, a comment, and what is none of them."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.darknet.cfg import MAX_BYTES, DarknetError, Section, format_cfg, parse_cfg, read_cfg
from tests.models.darknet.cfgs import SMALL
from tests.models.refusal import refuses

WORDS = st.text("abcdefghijklmnopqrstuvwxyz_0123456789,.-", min_size=1, max_size=12)
OPTIONS = st.dictionaries(WORDS, WORDS, max_size=5)


def test_sections_options_and_lines() -> None:
    net, conv = parse_cfg("[net]\nwidth=8\n\n[convolutional]\n# three\nfilters=3\nsize=1\n", "x")
    assert net == Section("net", {"width": "8"}, 1, {"width": 2})
    assert conv == Section(
        "convolutional", {"filters": "3", "size": "1"}, 4, {"filters": 6, "size": 7}
    )


@pytest.mark.parametrize(
    "text",
    [
        "[net]\r\nwidth=8\r\nlayers=-1,-4\r\n",
        "  [ net ]\n\twidth\t=\t8 \n layers = -1, -4 ",
        "\n\n# hello\n;[conv]\n[net]\n#width=9\nwidth=8#pixels\nlayers=-1,-4 ; both\n",
        "[net] # first\nwidth=8\nlayers=-1,-4",
    ],
)
def test_blanks_comments_and_line_ends_mean_nothing(text: str) -> None:
    (net,) = parse_cfg(text, "x")
    assert (net.kind, net.options) == ("net", {"width": "8", "layers": "-1,-4"})


def test_a_byte_order_mark_and_foreign_comments_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "x.cfg"
    path.write_bytes(b"\xef\xbb\xbf[net]\n# \xb3\xb5\xff\nwidth=8\n")
    assert read_cfg(path)[0].options == {"width": "8"}


def test_the_first_of_equal_options_counts() -> None:
    (net,) = parse_cfg("[net]\nwidth=8\nwidth=8\nbatch=1\nbatch=64\n", "x")
    assert net.options == {"width": "8", "batch": "1"}
    assert net.option_lines == {"width": 2, "batch": 4}


def test_different_values_of_one_option_are_refused() -> None:
    with refuses(DarknetError, "x: line 5", "[conv]", "filters=4", "filters=3", "line 4"):
        parse_cfg("[net]\nwidth=8\n[conv]\nfilters=3\nfilters=4\n", "x")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["x: no sections"]),
        ("# nothing\n\n", ["x: no sections"]),
        ("width=8\n[net]\n", ["line 1", "width", "before the first section"]),
        ("[convolutional]\nfilters=3\n", ["line 1", "[convolutional]", "[net]"]),
        ("[net]\nwidth\n", ["line 2", "'width'"]),
        ("[net]\n=8\n", ["line 2", "'=8'"]),
        ("[net\n", ["line 1", "'[net'"]),
        ("[]\n", ["line 1", "'[]'"]),
        ("[net]width=8\n", ["line 1", "'[net]width=8'"]),
        ("[net]\n\x1b[31m\n", ["line 2"]),
    ],
)
def test_what_is_not_a_cfg_is_refused_with_its_line(text: str, words: list[str]) -> None:
    with refuses(DarknetError, *words):
        parse_cfg(text, "x")


def test_files_that_are_no_texts_are_refused(tmp_path: Path) -> None:
    binary, long = tmp_path / "binary.cfg", tmp_path / "long.cfg"
    binary.write_bytes(b"[net]\n\0\0\0")
    long.write_bytes(b"#" * (MAX_BYTES + 1))
    for path, words in [
        (binary, "not a text"),
        (long, "longer than"),
        (tmp_path / "none.cfg", "No such file"),
        (tmp_path, "directory"),
    ]:
        with refuses(DarknetError, path, words):
            read_cfg(path)


@given(OPTIONS, st.lists(st.tuples(WORDS, OPTIONS), max_size=5))
def test_formatting_is_the_reverse_of_parsing(
    net: dict[str, str], sections: list[tuple[str, dict[str, str]]]
) -> None:
    made = [Section("net", net), *(Section(kind, options) for kind, options in sections)]
    parsed = parse_cfg(format_cfg(made), "x")
    assert [(s.kind, s.options) for s in parsed] == [(s.kind, s.options) for s in made]


@given(st.text(max_size=200) | st.lists(st.sampled_from("[]#;=\n\t net"), max_size=60).map("".join))
def test_any_text_parses_or_is_refused(text: str) -> None:
    with contextlib.suppress(DarknetError):
        assert parse_cfg(text, "x")[0].kind in ("net", "network")


@pytest.mark.parametrize("name", SMALL)
def test_whole_files(name: str) -> None:
    sections = read_cfg(SMALL[name])
    assert sections[0].kind == "net"
    assert all(section.kind != "net" for section in sections[1:])
    again = parse_cfg(format_cfg(sections), name)
    assert [(s.kind, s.options) for s in again] == [(s.kind, s.options) for s in sections]
