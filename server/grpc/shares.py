"""Which calls run: they have places as connections of HTTP have, by the same rules."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from server.errors import BusyError, NotServingError
from server.transport.giving_way import CountedConnection, Peer
from server.transport.limits import ConnectionLimits
from server.transport.registry import Registry, Visitor

# Calls fall silent without saying so: so often they are looked at while others wait.
_LOOK_SECONDS = 0.05


class CallPlaces:
    """Gives out places for calls, as many as ``limits`` has; ``clock``: the event loop's."""

    def __init__(self, limits: ConnectionLimits, clock: Callable[[], float]) -> None:
        self._registry = Registry(limits)
        self._clock = clock
        self._turns: dict[Visitor, asyncio.Future[bool]] = {}
        self._next_look: asyncio.TimerHandle | None = None
        self._end: asyncio.Event | None = None

    def close(self) -> Callable[[], None]:
        """Let calls that come from now on wait; calling what is returned refuses them."""
        self._end = asyncio.Event()
        return self._end.set

    def peer(self, address: str) -> Peer:
        """Return whose calls those from ``address`` are."""
        return self._registry.peer(address)

    @asynccontextmanager
    async def place(self, call: CountedConnection) -> AsyncIterator[None]:
        """Give ``call`` a place while this is open; where none is free it waits for one.

        Raises:
            BusyError: none came free. NotServingError: closed.
        """
        if self._end is not None:
            await self._end.wait()
            raise NotServingError("the server is stopping")
        if not await self._turn(call.peer):
            raise BusyError(
                "all calls are taken (setting max_connections), or those that one address may have"
            )
        self._registry.add(call)
        try:
            yield
        finally:
            self._registry.discard(call)
            self.look()

    async def _turn(self, peer: Peer) -> bool:
        """Return whether a place is kept for one more call of ``peer``."""
        visitor = Visitor(peer)
        turn = self._turns[visitor] = asyncio.Future[bool]()
        refused = self._registry.knock(visitor, self._clock())
        if refused is not None:
            self._tell(refused, has_place=False)
        self.look()
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.result():
                self._registry.missed(peer)
                self.look()
            raise

    def look(self) -> None:
        """Let in the calls that have a place by now, refuse those that have waited long enough."""
        now = self._clock()
        while visitors := self._registry.let_in(now):
            for visitor in visitors:
                self._tell(visitor, has_place=True)
        for visitor in self._registry.turn_away(now):
            self._tell(visitor, has_place=False)
        if self._registry.waiting and self._next_look is None:
            loop = asyncio.get_running_loop()
            self._next_look = loop.call_later(_LOOK_SECONDS, self._look_again)

    def _look_again(self) -> None:
        self._next_look = None
        self.look()

    def _tell(self, visitor: Visitor, has_place: bool) -> None:
        turn = self._turns.pop(visitor)
        if not turn.cancelled():
            turn.set_result(has_place)
        elif has_place:
            self._registry.missed(visitor.peer)  # its client left
