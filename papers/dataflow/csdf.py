"""Cyclo-static dataflow graphs (seed 001, Section III-B): actors with phases, channels with rates.

An actor fires its phases in turn, one at a time. A firing takes the tokens that its phase consumes when it
starts and puts down the tokens that it produces when it ends; room for these is claimed at its start, and
room of those that it took is free at its end (as SDF3 counts).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from models.errors import ModelError

#: Buffer capacities by channel, in tokens; None where a channel may hold any number.
Capacities = Sequence[int | None]


class DataflowError(ModelError):
    """A graph that is none, that is inconsistent, or that stops."""


@dataclass(frozen=True, slots=True)
class Actor:
    """``times[p]``: how long phase p takes, in any unit; as many as there are phases."""

    name: str
    times: tuple[int, ...]

    @property
    def phases(self) -> int:
        return len(self.times)


@dataclass(frozen=True, slots=True)
class Channel:
    """A queue from actor ``source`` to actor ``target``, numbers of a graph's actors.

    ``production[p]``: tokens that phase p of the source puts there; ``consumption`` likewise.
    ``token_size``: memory of a token; 0: the channel orders two actors, and holds nothing.
    """

    name: str
    source: int
    target: int
    production: tuple[int, ...]
    consumption: tuple[int, ...]
    initial: int = 0
    token_size: int = 1


@dataclass(frozen=True)
class DataflowGraph:
    """Actors and channels.

    Raises:
        DataflowError: a name is there twice, a channel leads nowhere, a rate or time is negative, there are
            not as many rates as phases, or a channel that one end never uses.
    """

    name: str
    actors: tuple[Actor, ...]
    channels: tuple[Channel, ...]

    def __post_init__(self) -> None:
        if not self.actors:
            raise DataflowError(f"{self.name}: no actors")
        _check_names(f"{self.name}: two actors", [actor.name for actor in self.actors])
        _check_names(f"{self.name}: two channels", [channel.name for channel in self.channels])
        for actor in self.actors:
            if not actor.times or min(actor.times) < 0:
                raise DataflowError(
                    f"{self.name}: actor {actor.name!r} needs a time of 0 or more for each phase"
                )
        for channel in self.channels:
            self._check(channel)

    def _check(self, channel: Channel) -> None:
        where = f"{self.name}: channel {channel.name!r}"
        ends = (
            ("source", channel.source, channel.production),
            ("target", channel.target, channel.consumption),
        )
        for end, number, rates in ends:
            if not 0 <= number < len(self.actors):
                raise DataflowError(f"{where}: its {end} is no actor")
            actor = self.actors[number]
            if len(rates) != actor.phases:
                raise DataflowError(
                    f"{where}: {len(rates)} rates at {actor.name!r}, which has {actor.phases} phases"
                )
            if min(rates) < 0:
                raise DataflowError(f"{where}: a rate below 0 at {actor.name!r}")
            if not any(rates):
                raise DataflowError(f"{where}: all rates at {actor.name!r} are 0")
        if channel.initial < 0 or channel.token_size < 0:
            raise DataflowError(f"{where}: initial tokens and token size are 0 or more")

    @cached_property
    def outgoing(self) -> tuple[tuple[int, ...], ...]:
        """For each actor the channels that it produces to."""
        return _by_actor(len(self.actors), [channel.source for channel in self.channels])

    @cached_property
    def incoming(self) -> tuple[tuple[int, ...], ...]:
        """For each actor the channels that it consumes from."""
        return _by_actor(len(self.actors), [channel.target for channel in self.channels])

    def size(self, capacities: Capacities) -> int:
        """Return the memory of buffers of these capacities; channels without one are not counted."""
        pairs = zip(self.channels, capacities, strict=True)
        return sum(channel.token_size * (tokens or 0) for channel, tokens in pairs)


def _by_actor(count: int, ends: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    found: list[list[int]] = [[] for _ in range(count)]
    for number, actor in enumerate(ends):
        found[actor].append(number)
    return tuple(map(tuple, found))


def _check_names(what: str, names: Sequence[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise DataflowError(f"{what} are called {name!r}")
        seen.add(name)


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
