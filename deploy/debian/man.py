"""``python deploy/debian/man.py`` prints the page layerstream(1), made of what ``--help`` says."""

import re
import sys
from typing import Any

from typer.main import get_command

from cli.commands import program
from cli.printing.help import value_name
from cli.reference import commands, is_option, shown
from server.operation.process import installed_version


def main() -> None:
    """Print the page."""
    whole = get_command(program())
    page = [
        f'.TH LAYERSTREAM 1 "" "layerstream {installed_version()}"',
        f".SH NAME\nlayerstream \\- {_prose(_first_letter_small(whole.help))}",
        r".SH SYNOPSIS" + "\n.B layerstream\n.I COMMAND\n[OPTIONS] [ARGUMENTS]",
        ".SH OPTIONS\n" + _parameters(whole),
        ".SH COMMANDS",
    ]
    for path, command in commands():
        page += _described(path, command)
    page.append(
        ".SH EXIT STATUS\n0, 2 for bad usage or input, 1 for a failure, 130 after an interrupt."
    )
    sys.stdout.write("\n".join(page) + "\n")


def _described(path: str, command: Any) -> list[str]:
    arguments = [_text(value_name(item)) for item in shown(command) if not is_option(item)]
    usage = f"[OPTIONS] {' '.join(arguments)}".strip()
    return [f".SS {_text(path)} {usage}\n{_prose(command.help)}", _parameters(command)]


def _parameters(command: Any) -> str:
    return "\n".join(_parameter(item) for item in shown(command))


def _parameter(item: Any) -> str:
    if not is_option(item):
        return f".TP\n\\fI{_text(value_name(item))}\\fR\n{_prose(item.help)}"
    names = ", ".join(_text(name) for name in (*item.opts, *item.secondary_opts))
    takes = "" if getattr(item, "is_flag", False) else f" \\fI{_text(value_name(item))}\\fR"
    return f".TP\n\\fB{names}\\fR{takes}\n{_prose(item.help)}"


def _prose(text: str | None) -> str:
    """Return ``text`` for troff; empty lines begin a paragraph."""
    parts = re.split(r"\n\s*\n", (text or "").strip())
    return "\n.PP\n".join(_text(" ".join(part.split())) for part in parts)


def _text(text: str) -> str:
    text = text.replace("\\", r"\e").replace("-", r"\-")
    return f"\\&{text}" if text.startswith((".", "'")) else text


def _first_letter_small(text: str | None) -> str:
    text = (text or "").strip().rstrip(".")
    return text[:1].lower() + text[1:]


if __name__ == "__main__":
    main()
