"""All commands with their options: ``python -m cli.reference`` writes docs/reference/options*.md.

The command line itself says what they are; deploy/debian/man.py makes a page of the manual of the same.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from cli.commands import COMMANDS, loaded
from cli.commands import PANELS as COMMAND_PANELS
from cli.printing.help import value_name
from server.settings.settings import Settings
from server.settings.table import settings_table

_PAGES = Path(__file__).resolve().parents[1] / "docs" / "reference"
#: The pages, and the panels of ``--help`` whose commands they have.
PAGES = {
    "options.md": ("Serve", "Models"),
    "options-operate.md": ("Memory and time", "Operate", "Convert", "Research"),
}
_HEAD = """# Commands and options: {title}

```sh
layerstream {example} --help
```

Written by `python -m cli.reference`; `layerstream --help` lists all commands, the `--help` of each says
more. Values in capitals are yours. {more}
"""
_MORE = {
    "options.md": """`serve` and `up` take every
[setting](settings.md) in addition. Others: [operate](options-operate.md).

Sizes have a unit, 64MiB, 1.5GB or 512KiB; a number alone is bytes, and refused below 1048576. Commands that
compute take `--device cuda`, but for `bench resolutions`. An error is one line on stderr; [exit
statuses](errors.md#of-commands).""",
    "options-operate.md": """Commands for
models: [options](options.md). Those for research and `bench` are named alone.""",
}
#: Commands that a page names without their options: who uses them reads their ``--help``.
_NAMED = frozenset({"bench", *COMMAND_PANELS["Research"]})
_SERVE = frozenset({"layerstream serve", "layerstream up"})
_OF_ONE_FILE = "Of the one ONNX file, as of `compile`"  # options of ``up``
_SHARED = 2  # commands that have the same option, word for word


def commands() -> Iterator[tuple[str, Any]]:
    """Yield (``layerstream zoo build``, the command) of all commands, those of groups one by one."""
    for name in COMMANDS:
        yield from _leaves(f"layerstream {name}", loaded(name))


def _leaves(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    inside = getattr(command, "commands", {})
    if not inside:
        yield path, command
    for name in inside:
        yield from _leaves(f"{path} {name}", inside[name])


def shown(command: Any) -> list[Any]:
    """Return the arguments and options of ``command`` that ``--help`` shows."""
    return [item for item in command.params if not getattr(item, "hidden", False)]


def is_option(item: Any) -> bool:
    """Say whether ``item`` is an option, not an argument."""
    return bool(item.opts[0].startswith("-"))


def markdown(page: str) -> str:
    """Return the page called ``page``: what several of its commands share is at the top."""
    panels = PAGES[page]
    names = [name for panel in panels for name in COMMAND_PANELS[panel]]
    every = [
        (path, command.help, _rows(path, command))
        for path, command in commands()
        if path.split()[1] in names
    ]
    used = [rows for path, _, rows in every if path.split()[1] not in _NAMED]
    settings = {item.help for item in settings_table()}
    counts = Counter(row for rows in used for row in rows if row.text not in settings)
    texts = Counter(row.name for row, count in counts.items() if count >= _SHARED)
    shared = {
        row
        for row, count in counts.items()
        if count >= _SHARED and row.option and texts[row.name] == 1
    }
    top = sorted(shared, key=lambda row: row.names)
    head = _HEAD.format(title=", ".join(panels).lower(), example=names[0], more=_MORE[page])
    parts = [head, "## Options that several commands share", _table(top)]
    for path, text, rows in every:
        arguments = [row.names for row in rows if not row.option]
        usage = [f"`{' '.join([path, *arguments])}`"] if len(arguments) > 1 else []
        listed = [row for row in rows if row in shared or row.text in settings]
        same = [row for row in rows if row.text.startswith(_OF_ONE_FILE)]
        own = [row for row in rows if row not in listed + same]
        parts += [f"## {path}", *usage, _summary(text)]
        if path.split()[1] in _NAMED:
            continue
        parts += [_table(own)] if own else []
        parts += [f"{_OF_ONE_FILE}: {', '.join(f'`{row.name}`' for row in same)}."] if same else []
        for title, is_shared in (("Shared", True), ("[Settings](settings.md)", False)):
            also = [f"`{row.name}`" for row in listed if (row in shared) is is_shared]
            parts += [f"{title}: {', '.join(also)}."] if also else []
    return "\n\n".join(parts) + "\n"


class _Row(NamedTuple):
    """One line of a table: an argument, or an option with its value; ``|`` is not yet escaped."""

    names: str
    text: str
    option: bool

    @property
    def name(self) -> str:
        """The option without its value and its other names."""
        return self.names.split()[0].rstrip(",")


def _rows(path: str, command: Any) -> list[_Row]:
    known = Settings.model_fields if path in _SERVE else {}
    return [_row(item) for item in shown(command) if not is_option(item) or item.name not in known]


def _row(item: Any) -> _Row:
    if not is_option(item):
        return _Row(value_name(item), _prose(item.help), option=False)
    names = ", ".join((*item.opts, *item.secondary_opts))
    is_flag = getattr(item, "is_flag", False)
    text, default = _prose(item.help), item.default
    if (
        not is_flag
        and isinstance(default, str | int | float)
        and "efault" not in text
        and str(default)
    ):
        text += f" Default: {default}."
    return _Row(names if is_flag else f"{names} {value_name(item)}", text, option=True)


def _table(rows: Iterable[_Row]) -> str:
    cells = ([text.replace("|", r"\|") for text in row[:2]] for row in rows)
    return "\n".join(["| | |", "|---|---|", *(f"| `{names}` | {text} |" for names, text in cells)])


def _summary(text: str | None) -> str:
    """Return what a command does, and its example; ``--help`` has the rest."""
    first, _, rest = (text or "").partition("\n\n")
    example = re.match(r"Example: (.+)", rest)
    return _prose(first) + (f" Example: `{example[1].strip()}`." if example else "")


def _prose(text: str | None) -> str:
    return re.sub(r"\s+", " ", (text or "").strip())


if __name__ == "__main__":
    for page in PAGES:
        (_PAGES / page).write_text(markdown(page), "utf-8")
