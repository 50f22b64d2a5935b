"""``python deploy/debian/man.py`` prints the page layerstream(1), made of what ``--help`` says."""

import re
import sys
from typing import Any

from typer.main import get_command

from cli.commands import COMMANDS, loaded, program
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
    for name in COMMANDS:
        page += _described(f"layerstream {name}", loaded(name))
    page.append(
        ".SH EXIT STATUS\n0, 2 for bad usage or input, 1 for a failure, 130 after an interrupt."
    )
    sys.stdout.write("\n".join(page) + "\n")


def _described(path: str, command: Any) -> list[str]:
    """Return a part of the page for ``command``, or one for each command of a group."""
    inside = getattr(command, "commands", {})
    if inside:
        return [part for name in inside for part in _described(f"{path} {name}", inside[name])]
    arguments = [_text(_name(item)) for item in _shown(command) if not item.opts[0].startswith("-")]
    usage = " ".join([f"[OPTIONS] {' '.join(arguments)}".strip()])
    return [f".SS {_text(path)} {usage}\n{_prose(command.help)}", _parameters(command)]


def _parameters(command: Any) -> str:
    return "\n".join(_parameter(item) for item in _shown(command))


def _shown(command: Any) -> list[Any]:
    return [item for item in command.params if not getattr(item, "hidden", False)]


def _parameter(item: Any) -> str:
    is_option = item.opts[0].startswith("-")
    names = ", ".join(_text(name) for name in (*item.opts, *item.secondary_opts))
    takes = (
        "" if not is_option or getattr(item, "is_flag", False) else f" \\fI{_text(_name(item))}\\fR"
    )
    head = f"\\fB{names}\\fR{takes}" if is_option else f"\\fI{_text(_name(item))}\\fR"
    return f".TP\n{head}\n{_prose(item.help)}"


def _name(item: Any) -> str:
    """Return what stands for the value of an option, or for an argument."""
    return str(item.metavar or item.name.upper().replace("_", "-"))


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
