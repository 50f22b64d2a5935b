"""Comments and docstrings name things as things: the words for persons are left to people."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# Those whose comments were gone through.
FOLDERS = (
    *("models", "loader", "pipeline", "papers", "layerstream"),
    *("server", "cli", "benchmarks", "tests"),
)
PERSONS = re.compile(
    r"\b(who|whom|whoever|no one|(no|any|some|every)body|(any|some|every)one"
    r"|he|him|himself|his|she|her|herself|hers)\b",
    re.IGNORECASE,
)
# People: authors of papers, and users, readers, operators of the software.
PEOPLE = re.compile(r"\b(He et al|(?i:user|reader|operator|author|developer)s?\s+who)\b")


def prose(source: str) -> Iterator[tuple[int, str]]:
    """Yield the comments and docstrings of ``source``, with the line where each begins."""
    docstrings = set()
    for node in ast.walk(ast.parse(source)):
        statements = getattr(node, "body", None)
        for statement in statements if isinstance(statements, list) else ():
            value = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                docstrings.add((value.lineno, value.col_offset))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        # A column counts bytes in the tree, characters in a token: before a docstring are spaces alone.
        if token.type == tokenize.COMMENT or token.start in docstrings:
            yield token.start[0], token.string


def persons(source: str) -> Iterator[tuple[int, str]]:
    """Yield each word for a person that is said of something else, with its line."""
    # Tokens take a hundred times as long: behind a hash, or an odd number of quotes, may be prose.
    words = [word.start() for word in PERSONS.finditer(source)]
    if not any(
        "#" in source[source.rfind("\n", 0, at) + 1 : at] or source.count('"""', 0, at) % 2
        for at in words
    ):
        return
    for first, text in prose(source):
        people = [found.span() for found in PEOPLE.finditer(text)]
        for word in PERSONS.finditer(text):
            if not any(start <= word.start() < end for start, end in people):
                yield first + text.count("\n", 0, word.start()), word[0]


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_thing_is_a_person(folder: str) -> None:
    places = [
        f"{path.relative_to(ROOT)}:{line}: {word}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, word in persons(path.read_text("utf-8"))
    ]
    assert not places, "say which thing it is, or name the people:\n" + "\n".join(places)


def test_words_for_persons_are_found() -> None:
    source = (
        '"""A reader who asks; whoever waits.\n\nHis turn."""\n'
        "NAME = 'who'  # nobody, as He et al. say\n"
        "def f():\n"
        '    """Users\n    who ask."""\n'
    )
    assert list(persons(source)) == [(1, "whoever"), (3, "His"), (4, "nobody")]
