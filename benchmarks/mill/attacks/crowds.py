"""Hundreds that are slow, ten thousand that are idle, from many addresses or from one (``mill.crowd``)."""

import asyncio
from collections.abc import Sequence

from benchmarks.mill.attacks.requests import head
from benchmarks.mill.crowd import Crowd, Siege, spread
from benchmarks.mill.target import AttackedServer

_IDLE = Crowd(10_000, pace=1000)
_SLOW_HEADERS = Crowd(
    500, b"POST /v2/models/tiny/infer HTTP/1.1\r\nHost: localhost\r\nX-Slow: ", b"y"
)
_SLOW_BODIES = Crowd(500, head(100_000, "/v2/models/tiny/infer"), b" ")
_ADDRESSES = 250


async def _besiege(target: AttackedServer, crowd: Crowd, addresses: Sequence[str]) -> None:
    siege = Siege(crowd, target.port, addresses)
    await asyncio.to_thread(siege.play, target.left)
    target.seen.update(siege.seen)


async def idle(target: AttackedServer) -> None:
    """Keep 10,000 connections from 250 addresses that ask nothing."""
    await _besiege(target, _IDLE, spread(_ADDRESSES))


async def idle_from_one(target: AttackedServer) -> None:
    """The same from one address."""
    await _besiege(target, _IDLE, spread(1))


async def slow_headers(target: AttackedServer) -> None:
    """Send a header a byte a second on each of 500 connections from 250 addresses."""
    await _besiege(target, _SLOW_HEADERS, spread(_ADDRESSES))


async def slow_headers_from_one(target: AttackedServer) -> None:
    """The same from one address."""
    await _besiege(target, _SLOW_HEADERS, spread(1))


async def slow_bodies(target: AttackedServer) -> None:
    """Send a body a byte a second on each of 500 connections from 250 addresses."""
    await _besiege(target, _SLOW_BODIES, spread(_ADDRESSES))


async def slow_bodies_from_one(target: AttackedServer) -> None:
    """The same from one address."""
    await _besiege(target, _SLOW_BODIES, spread(1))
