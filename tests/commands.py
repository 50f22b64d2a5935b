"""Commands that pages name, and whether they are there: ours, modules, targets of make, files.

Nothing is run: options of ``layerstream`` are those of its parsers, those of ``python -m MODULE`` are read
from calls of ``add_argument`` in its source, and in what that imports of ours.
"""

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from cli.commands import COMMANDS, loaded
from tests.documents import ROOT, Page

_OURS = ("benchmarks", "cli", "server", "tests", "tools", "deploy")
_END = re.compile(r"[;&|()<>]+")


def simple(text: str) -> Iterator[list[str]]:
    """Yield the simple commands of a text for a shell, as words."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.shlex(line, posix=True, punctuation_chars=True)
        words.whitespace_split = True
        command: list[str] = []
        for word in words:
            if _END.fullmatch(word):
                yield command
                command = []
            else:
                command.append(word)
        yield command


def named(page: Page) -> Iterator[tuple[int, list[str]]]:
    """Yield (line, words) of the commands of a page: in blocks, and in code within its text.

    There a command may be a form: ``[--option VALUE]``, ``A|B``, ``PACK...``, or its first words.
    """
    for block in page.blocks:
        for words in simple(block.commands):
            yield block.line, words
    for line, text in page.prose:
        for span in re.findall(r"`([^`]+)`", text):
            form = re.sub(r"[\[\]\\]", "", span)
            if re.match(r"(layerstream|python3?|make) ", form) and form.count('"') % 2 == 0:
                for words in simple(form):
                    yield line, words


def wrong(words: list[str]) -> str | None:
    """Return what of a command is not there, if it is one of ours."""
    match words:
        case ["layerstream", *given]:
            return _wrong_option(given)
        case ["python" | "python3", "-m", module, *given] if module.split(".")[0] in _OURS:
            known = _options(module)
            if known is None:
                return f"no module {module}"
            lost = [word for word in _option_names(given) if word not in known]
            return f"{module} has no {lost[0]}" if lost else None
        case ["make", target, *_] if not re.search(rf"^{target}:", _makefile(), re.MULTILINE):
            return f"no target {target}"
    lost = [
        word
        for word in words
        if "/" in word and word.split("/")[0] in _OURS and not (ROOT / word).exists()
    ]
    return f"no {lost[0]}" if lost else None


def _wrong_option(given: list[str]) -> str | None:
    name, *rest = given
    if name.startswith("--"):
        return None if name in ("--version", "--help") else f"no {name}"
    if name not in COMMANDS:
        return f"no command {name}"
    command = loaded(name)
    while rest and getattr(command, "commands", None):
        if rest[0] not in command.commands:
            return f"no command {name} {rest[0]}"
        command = command.commands[rest.pop(0)]
    known = {name for item in command.params for name in (*item.opts, *item.secondary_opts)}
    lost = [word for word in _option_names(rest) if word not in known | {"--help"}]
    return f"{name} has no {lost[0]}" if lost else None


def _option_names(words: list[str]) -> list[str]:
    return [word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)]


@cache
def _options(module: str) -> frozenset[str] | None:
    """Return the options of a module and of what it imports of ours; None: there is no such module."""
    path = _source(module)
    if path is None:
        return None
    tree = ast.parse(path.read_text("utf-8"))
    found = _added(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and (source := _source(node.module)):
            found |= _added(ast.parse(source.read_text("utf-8")))
    return frozenset(found)


def _source(module: str) -> Path | None:
    path = ROOT.joinpath(*module.split("."))
    paths = (path.with_suffix(".py"), path / "__main__.py")
    return next((each for each in paths if each.exists()), None)


def _added(tree: ast.Module) -> set[str]:
    return {
        argument.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "add_argument"
        for argument in node.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    }


@cache
def _makefile() -> str:
    return (ROOT / "Makefile").read_text("utf-8")
