"""Actors as errors name them: a path of bounded length."""

from collections.abc import Sequence

from papers.dataflow.csdf import DataflowGraph

_MOST_NAMED = 8
_MOST_LETTERS = 40


def path(graph: DataflowGraph, actors: Sequence[int]) -> str:
    """Return the names of ``actors``, one after the other; of many the first and the last."""
    names = [shortened(graph.actors[actor].name) for actor in actors]
    if len(names) > _MOST_NAMED:
        left_out = f"({len(names) - _MOST_NAMED} more)"
        names = [*names[: _MOST_NAMED - 2], left_out, *names[-2:]]
    return " -> ".join(names)


def shortened(name: str) -> str:
    """Return ``name`` quoted, or as much of it as a line holds."""
    return repr(name if len(name) <= _MOST_LETTERS else f"{name[: _MOST_LETTERS - 3]}...")
