"""How ``--help`` shows a command: values in capitals, no types of flags, paragraphs as they are."""

import inspect
import re
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


class Leaf(TyperCommand):
    """A command whose help names each value once."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        # Rich would break lines where the source does, and again where the terminal ends.
        self.help = re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.cleandoc(self.help or ""))
        for item in self.params:
            name_value(item)

    def get_help_option(self, ctx: Any) -> Any:
        """Return ``--help``."""
        return name_value(super().get_help_option(ctx))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return what stands behind the name of the command: arguments in capitals, without braces."""
        pieces = (re.sub("[{}]", "", piece) for piece in super().collect_usage_pieces(ctx))
        return [re.sub(r"(\.{3}\]?)\.{3}", r"\1", piece) for piece in pieces]


class Branch(TyperGroup):
    """A command that others are below of."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return its options, which have no values."""
        return [name_value(item) for item in super().get_params(ctx)]


class CommandGroup(typer.Typer):
    """Commands below a name, for which ``help`` is a sentence."""

    def __init__(self, help: str) -> None:  # noqa: A002  as Typer has it
        super().__init__(help=help, cls=Branch, add_completion=False)

    def command(self, name: str | None = None, **named: Any) -> Callable[..., Any]:
        """Return a decorator of a function that is such a command, as Typer.command."""
        return super().command(name, **{"cls": Leaf, **named})


def name_value(item: Any) -> Any:
    """Let ``item``, an argument or an option, say what its value is called; return it."""
    is_flag = getattr(item, "is_flag", False)
    if item is not None:
        item.metavar = "" if is_flag else value_name(item)
        if not item.opts[0].startswith("-"):  # its name is that of its value
            item.display_type_rich = lambda ctx: ""
    return item


def value_name(item: Any) -> str:
    """Return what stands for the value of an option, or for an argument; the choices, where it has some."""
    kind = item.type_descriptor
    if item.metavar:
        return str(item.metavar)
    if kind.choices:
        return "|".join(map(str, kind.choices))
    is_option, is_number = (
        item.opts[0].startswith("-"),
        kind.is_ranged or kind.annotation in {int, float},
    )
    if is_option and (is_number or kind.is_path):
        return "NUMBER" if is_number else "PATH"
    return str(item.name).strip("_").upper().replace("_", "-")
