"""Commands that README, docs/ and deploy/ show are there, with the options that are shown."""

import re
import shlex
from collections.abc import Iterator

import pytest

from tests.documents import Page, pages
from tests.server.support import Cli

SHELL = {"", "sh", "console"}
OPTIONAL = str.maketrans("[]", "  ")


def commands(page: Page) -> Iterator[tuple[int, list[str]]]:
    """Yield line and words after `layerstream` of each command in blocks, and in code inside of prose."""
    texts = [(line, span) for line, text in page.prose for span in re.findall("`([^`]*)`", text)]
    for block in page.blocks:
        if block.language in SHELL:
            lines = block.text.replace("\\\n", " ").splitlines()
            texts += [(block.line, line.strip().removeprefix("$ ")) for line in lines]
    for line, text in texts:
        if text.startswith("layerstream "):
            yield line, shlex.split(text.translate(OPTIONAL), comments=True)[1:]


def lost(words: list[str], cli: Cli, known: dict[str, str]) -> list[str]:
    """Return which options of ``words`` the help of their command does not have, or the command itself."""
    name = [word for word in words[:1] if not word.startswith("-")]
    text = _help(name, cli, known)
    if name and "COMMAND [ARGS]" in text:
        name = words[:2]
        text = _help(name, cli, known)
    if not text:
        return [" ".join(name)]
    options = {word.partition("=")[0] for word in words if word.startswith("--")}
    return sorted(options - set(re.findall(r"--[a-z][a-z-]*", text)))


def _help(name: list[str], cli: Cli, known: dict[str, str]) -> str:
    """Return the help of a command, nothing where there is none."""
    words = " ".join(name)
    if words not in known:
        known[words] = cli(*name, "--help").out
    return known[words]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["run", "PACK", "--weights", "5%", "--wrong=1"], ["--wrong"]),
        (["zoo", "build", "yolov4", "--resolution", "608"], []),
        (["zoo", "wrong", "--resolution"], ["zoo wrong"]),
        (["wrong", "--weights"], ["wrong"]),
        (["--help", "--wrong"], ["--wrong"]),
    ],
)
def test_what_there_is_not_is_found(words: list[str], found: list[str], cli: Cli) -> None:
    assert lost(words, cli, {}) == found


def test_commands_shown_are_there(cli: Cli) -> None:
    shown = [
        (f"{path}:{line}: {' '.join(words)}", words)
        for path, page in pages().items()
        for line, words in commands(page)
    ]
    assert len(shown) > 50
    known: dict[str, str] = {}
    wrong = {place: found for place, words in shown if (found := lost(words, cli, known))}
    assert wrong == {}
