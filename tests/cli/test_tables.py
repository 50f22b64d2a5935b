"""Tables and facts in terminals and pipes: nothing cut, no number folded, nothing read as markup."""

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from cli.printing import output
from cli.printing.steps import steps
from cli.printing.tables import fold, lay_out, lay_out_facts
from models.errors import printable
from tests.examples import examples

WIDTHS = [None, 20, 80, 200]
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")

numbers = st.one_of(
    st.integers(-(10**12), 10**12).map(lambda value: f"{value:,}"),
    st.floats(0, 1e9).map(lambda value: f"{value:.2f}"),
    st.floats(0, 1).map(lambda value: f"{value:.2g}"),
    st.just("-"),
)
texts = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\r"), max_size=100
) | st.sampled_from(["[red]x[/red]", "a" * 90, "日本語" * 30, "\x1b[2J", "a b " * 20])


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[str], list[tuple[str, ...]]]:
    """Heads and rows; a column has texts or numbers."""
    kinds = draw(st.lists(st.booleans(), min_size=1, max_size=9))
    cells = st.tuples(*(numbers if kind else texts for kind in kinds))
    heads = ["number ms" if kind else "text" for kind in kinds]
    return heads, draw(st.lists(cells, max_size=4))


def squeezed(text: str) -> str:
    return "".join(text.split())


@examples(15, many=1000)
@given(table=tables(), width=st.sampled_from(WIDTHS) | st.integers(1, 120))
def test_every_number_is_there_as_it_is(
    table: tuple[list[str], list[tuple[str, ...]]], width: int | None
) -> None:
    heads, rows = table
    lines = lay_out(heads, rows, width)
    words = " ".join(lines.body).split()
    for row in rows:
        assert {cell for head, cell in zip(heads, row, strict=True) if head != "text"} <= set(words)


@examples(15, many=1000)
@given(table=tables(), width=st.sampled_from(WIDTHS) | st.integers(1, 120))
def test_every_character_is_there(
    table: tuple[list[str], list[tuple[str, ...]]], width: int | None
) -> None:
    heads, rows = table
    lines = lay_out(heads, rows, width)
    got = sorted(squeezed("".join((*lines.head, *lines.body))))
    repeated = 1 if lines.head else len(rows)
    expected = "".join(heads) * repeated + "".join(printable(cell) for row in rows for cell in row)
    assert got == sorted(squeezed(expected))


@examples(15, many=1000)
@given(table=tables(), width=st.integers(1, 120))
def test_a_table_is_as_wide_as_its_terminal_or_becomes_facts(
    table: tuple[list[str], list[tuple[str, ...]]], width: int
) -> None:
    lines = lay_out(*table, width)
    if lines.head:
        assert max(map(cell_len, (*lines.head, *lines.body))) <= width


@examples(15, many=1000)
@given(table=tables())
def test_in_a_pipe_a_row_is_a_line_with_every_cell_whole(
    table: tuple[list[str], list[tuple[str, ...]]],
) -> None:
    heads, rows = table
    lines = lay_out(heads, rows, None)
    assert len(lines.head) == 1
    assert len(lines.body) == len(rows)
    for row, line in zip(rows, lines.body, strict=True):
        for cell in row:
            assert printable(cell).strip() in line


@given(text=texts, width=st.integers(1, 50), cut=st.booleans())
def test_folding_loses_nothing(text: str, width: int, cut: bool) -> None:
    lines = fold(printable(text), width, cut)
    assert squeezed("".join(lines)) == squeezed(printable(text))
    if cut and width > 1:  # a wide character takes two columns
        assert all(cell_len(line) <= width for line in lines)


def test_a_number_keeps_its_unit() -> None:
    assert fold("takes 288.0 KiB, or 5 of 1.5 MiB", 12) == [
        "takes",
        "288.0 KiB,",
        "or 5 of",
        "1.5 MiB",
    ]
    assert fold("a s b", 3) == ["a s", "b"]


def test_numbers_lie_right_and_texts_left() -> None:
    lines = lay_out(
        ("name", "weights MiB", "delay ms"), [("a", "1.50", "-"), ("bb", "112.00", "3")], 80
    )
    assert lines.head == ["name  weights MiB  delay ms"]
    assert lines.body == ["a            1.50         -", "bb         112.00         3"]


def test_heads_fold_first_then_texts_and_at_last_each_row_is_a_block() -> None:
    heads, row = (
        ("name", "weights MiB", "delay ms"),
        ("a-long-name-of-24-letters", "112.00", "1234.56"),
    )
    assert lay_out(heads, [row], 48).head == ["name                       weights MiB  delay ms"]
    folded = lay_out(heads, [row], 43)
    assert folded.head == [
        "name                       weights    delay",
        "                               MiB       ms",
    ]
    assert len(lay_out(heads, [row], 32).body) == 2
    assert lay_out(heads, [row], 20).head == []
    assert lay_out(heads, [row], 20).body[1:] == ["weights MiB  112.00", "delay ms     1234.56"]


def test_facts_fold_between_words_so_that_paths_can_be_copied() -> None:
    path = "/a/long/path/that/no/terminal/holds"
    assert lay_out_facts([("where", f"in {path}")], 20) == ["where  in", f"       {path}"]
    assert lay_out_facts([("a", "b c"), ("long", "d")], None) == ["a     b c", "long  d"]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """A terminal of 80 columns with colours, and what it gets."""
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=80, color_system="truecolor")
    monkeypatch.setattr(output, "console", lambda: console)
    return file


HOSTILE = [
    "[bold red]x[/]",
    "[/nothing]",
    "\x1b[2Jgone",
    "two\nlines",
    ":smile:",
    "https://x.y",
    "\u202eback",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_no_markup_and_do_nothing_to_a_terminal(terminal: io.StringIO, name: str) -> None:
    output.print_table(name, ("name", name), [(name, "1")])
    output.print_facts([(name, name)])
    output.say(name)
    output.suggest(name, name)
    shown = ESCAPES.sub("", terminal.getvalue())
    assert shown.count(printable(name)) == 8
    # Only ours: bold, underlined, and back.
    assert set(ESCAPES.findall(terminal.getvalue())) <= {"\x1b[1m", "\x1b[4m", "\x1b[0m"}
    assert not set(shown) & {"\x1b", "\u202e"}


@pytest.mark.parametrize("is_terminal", [True, False])
def test_steps_are_lines_on_a_terminal_and_nothing_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=is_terminal, width=80, color_system=None)
    monkeypatch.setattr("cli.printing.steps.errors", lambda: console)
    monkeypatch.setattr("cli.printing.steps.is_followed", lambda: is_terminal)
    with steps("compiling [/x].onnx") as progress:
        progress("read")
        for number in range(3):
            progress("optimise", f"[part {number}]")
    shown = file.getvalue()
    if not is_terminal:
        assert shown == ""
        return
    ended = re.findall(r"  (read|optimise) +[0-9]+\.[0-9] s", shown)
    assert ended == ["read", "optimise"]
    assert "compiling [/x].onnx: optimise, [part 2]" in shown
