"""The check of words: what is new and retired is an error, what moves or goes is none."""

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, strategies

from tests.documents import ROOT
from tests.examples import over
from tools import words
from tools.words import Table, Usage, format_list, grown, parse_list, read_table, sentences, survey

PAGE = Path("docs", "page.md").as_posix()  # in a checkout of the tests, not in this one


@pytest.fixture(scope="module")
def table() -> Table:
    return read_table(ROOT / words.TABLE)


@pytest.fixture
def checkout(tmp_path: Path, table: Table) -> Path:
    """A checkout with one name and one sentence that are retired, and a list that has them."""
    for path in (words.TABLE, words.GLOSSARY):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    (tmp_path / "server").mkdir()
    (tmp_path / PAGE).write_text("# A page\n\nThe thread is told so.\nIt goes on.\n")
    (tmp_path / "server/names.py").write_text(
        "def told_bytes(count: int) -> int:\n    return count\n"
    )
    (tmp_path / words.LIST).write_text(format_list(survey(tmp_path, table).usage))
    return tmp_path


def append(path: Path, text: str) -> None:
    path.write_text(path.read_text() + text)


def test_a_new_retired_name_is_an_error_with_the_words_of_the_table(checkout: Path) -> None:
    append(checkout / "server/names.py", "def bring_wished(told: int) -> None: ...\n")
    before = (checkout / words.LIST).read_text()
    error, parameter = words.check(checkout)
    assert error.startswith("server/names.py:3: bring_wished has a retired word; use")
    assert 'for "bring": load' in error
    assert 'for "wished": desired state' in error
    assert parameter.startswith("server/names.py:3: told ")
    assert (checkout / words.LIST).read_text() == before


def test_a_renamed_name_shortens_the_list(checkout: Path) -> None:
    (checkout / "server/names.py").write_text("def client_message(count: int) -> None: ...\n")
    assert words.check(checkout) == []
    assert "told_bytes" not in (checkout / words.LIST).read_text()


def test_a_name_that_moves_is_no_new_name(checkout: Path) -> None:
    (checkout / "server/names.py").rename(checkout / "server/elsewhere.py")
    assert words.check(checkout) == []
    assert "server/elsewhere.py\n  told_bytes\n" in (checkout / words.LIST).read_text()


def test_one_more_scope_with_a_retired_name_is_an_error(checkout: Path) -> None:
    append(checkout / "server/names.py", "def other() -> None:\n    told_bytes = 1\n")
    (error,) = words.check(checkout)
    assert error.startswith("server/names.py:1, 4: told_bytes ")


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (PAGE, "\nWhoever waits is told.\n"),
        (PAGE, "\n| a | what the disk\n is said to do |\n"),
        ("README.md", "- Models are wished for.\n"),
        ("server/help.py", "HELP = 'What the server brings at its start.'\n"),
        ("server/help.py", "def f(x: int) -> None:\n    raise ValueError(f'{x} was said twice')\n"),
        ("server/help.py", 'def f() -> None:\n    """Do it.\n\n    The baton\n    is held."""\n'),
    ],
)
def test_a_new_sentence_with_a_retired_word_is_an_error(
    checkout: Path, file: str, text: str
) -> None:
    path = checkout / file
    path.touch()
    append(path, text)
    (error,) = words.check(checkout)
    assert error.startswith(f"{file}:")
    assert "this sentence has a retired word; use" in error


def test_a_changed_sentence_with_a_retired_word_is_an_error(checkout: Path) -> None:
    (checkout / PAGE).write_text("# A page\n\nThe process is told so.\n")
    assert len(words.check(checkout)) == 1


@over(
    "file, text",
    [
        (PAGE, "\nThe option `told` and `layerstream_sweep_seconds` stay.\n"),
        (PAGE, "\n```sh\necho told\n```\n"),
        ("server/help.py", "KEY = 'told'\n# The thread was told, says a comment.\n"),
        ("tests/test_it.py", "DATA = 'the bytes that the client said'\n"),
    ],
)
def test_code_keys_and_comments_are_no_prose(checkout: Path, file: str, text: str) -> None:
    path = checkout / file
    path.parent.mkdir(exist_ok=True)
    path.touch()
    append(path, text)
    assert words.check(checkout) == []


def test_the_list_may_only_shrink(checkout: Path) -> None:
    for command in (
        "init --quiet",
        "add .",
        "-c user.name=a -c user.email=b commit --quiet --message c",
    ):
        subprocess.run(["git", "-C", str(checkout), *command.split()], check=True)
    append(checkout / "server/names.py", "def bring() -> None: ...\n")
    append(checkout / words.LIST, "server/names.py\n  bring\n")
    assert words.check(checkout) == [
        "tools/retired.txt: bring was added (server/names.py); the list may only shrink"
    ]


def test_a_glossary_that_is_not_the_tables_is_an_error(checkout: Path) -> None:
    append(checkout / words.GLOSSARY, "\n")
    (error,) = words.check(checkout)
    assert "python -m tools.words glossary" in error


@over(
    "name, retired",
    [
        ("bring_wished", {"bring", "wished"}),
        ("_let_go", {"let_go"}),
        ("FoundRoute", {"found"}),
        ("MAX_MADEBytes", {"made"}),
        ("each", {"each"}),
        ("each_node", set()),
        ("foundation", set()),
        ("placement", set()),
        ("let_it_go", set()),
    ],
)
def test_retired_words_of_names(table: Table, name: str, retired: set[str]) -> None:
    assert set(table.in_name(name)) == retired


def test_project_terms_have_the_fields_word(table: Table) -> None:
    terms = [row for row in table.rows if row.section not in ("", "Papers")]
    assert len(terms) <= 40
    assert all(row.field and row.meaning for row in terms)


@over("row", ["a,b,c\n", "a,b,c,everywhere,,\n", "a,b,c,names,,,more\n"])
def test_a_broken_row_is_named(tmp_path: Path, row: str) -> None:
    path = tmp_path / "words.csv"
    path.write_text("ours,field,where,checked,section,meaning\n" + row)
    with pytest.raises(ValueError, match=r"words\.csv:2: "):
        read_table(path)


_USAGE = strategies.dictionaries(
    strategies.tuples(
        strategies.sampled_from(["a.py", "b/c.md"]), strategies.sampled_from(["x", "told:1a", "y"])
    ),
    strategies.integers(1, 4),
).map(Usage)


@given(_USAGE)
def test_a_list_is_read_as_it_is_written(usage: Usage) -> None:
    assert parse_list(format_list(usage)) == usage


@given(_USAGE, _USAGE)
def test_nothing_grows_where_each_item_is_used_no_more_often(old: Usage, new: Usage) -> None:
    def total(usage: Usage, item: str) -> int:
        return sum(count for (_, name), count in usage.items() if name == item)

    assert set(grown(old, new)) == {item for _, item in new if total(new, item) > total(old, item)}


def test_sentences_are_the_same_however_they_are_broken() -> None:
    assert list(sentences("One is\n  two. Three: four `code. x`!")) == list(
        sentences("One\nis two. Three:\nfour !")
    )
