"""Whether a graph whose buffers have no limits ever stops, and around which cycle."""

from collections.abc import Sequence

from papers.dataflow.consistency import repetitions
from papers.dataflow.csdf import DataflowError, DataflowGraph
from papers.dataflow.firing import FiringState, downstream_last
from papers.dataflow.naming import path


def firings(graph: DataflowGraph) -> tuple[int, ...]:
    """Return how often each actor fires in an iteration of ``graph``, which comes to its end.

    Raises:
        DataflowError: it is inconsistent, or it stops: each actor of a cycle waits for the one before.
    """
    cycles = repetitions(graph)
    counts = tuple(n * actor.phases for n, actor in zip(cycles, graph.actors, strict=True))
    state = FiringState(graph, [None] * len(graph.channels), counts)
    for _ in state.run(downstream_last(graph)):
        pass
    cycle = _waiting_cycle(state, counts)
    if cycle:
        raise DataflowError(
            f"{graph.name}: deadlocks: each of {path(graph, cycle)} waits for tokens "
            "of the one before"
        )
    return counts


def _waiting_cycle(state: FiringState, counts: Sequence[int]) -> list[int]:
    """Return the actors of a cycle in which nobody can fire, the first again at the end; none: complete."""
    waits_for = {
        stuck.actor: state.graph.channels[stuck.tokens[0]].source for stuck in state.stuck()
    }
    if not waits_for:
        assert list(counts) == state.fired
        return []
    actor = min(waits_for)
    way: list[int] = []
    while actor not in way:
        way.append(actor)
        actor = waits_for[actor]
    cycle = way[way.index(actor) :]
    return [actor, *reversed(cycle[1:]), actor]
