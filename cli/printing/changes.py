"""What passes of the compiler changed, as a table: ``compile --explain``."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from cli.printing.output import print_table
from cli.printing.sentences import counted

if TYPE_CHECKING:
    from models.compiler.passes.explain import PassChange

_COLUMNS = ("pass", "nodes", "values", "constants", "what changed")


def print_changes(changes: "Sequence[PassChange]") -> None:
    """Print a line a pass that changed something, in their order; nothing where there are none."""
    rows = [_row(change) for change in changes if not change.is_none]
    if changes:
        print_table(f"{len(rows)} of {len(changes)} passes changed something", _COLUMNS, rows)


def _row(change: "PassChange") -> tuple[str, ...]:
    sizes = (change.nodes, change.values, change.constants)
    return (change.name, *map(_size, sizes), "; ".join(_facts(change)))


def _size(pair: tuple[int, int]) -> str:
    before, after = pair
    return f"{before}" if before == after else f"{before} to {after}"


def _facts(change: "PassChange") -> list[str]:
    facts = [_operators("+", change.added), _operators("-", change.removed)]
    facts.append(f"{counted(change.rewritten, 'node')} rewritten" if change.rewritten else "")
    facts.append("another order" if change.moved else "")
    facts += [f"{count} {name}" for name, count in change.counts.items()]
    return [fact for fact in facts if fact]


def _operators(sign: str, operators: Mapping[str, int]) -> str:
    return ", ".join(f"{sign}{count} {name}" for name, count in operators.items())
