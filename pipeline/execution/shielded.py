"""Work that must not stop half done, whoever is cancelled meanwhile."""

import asyncio
from collections.abc import Awaitable
from functools import partial
from typing import TypeVar

T = TypeVar("T")


async def run_to_completion(work: Awaitable[T]) -> T:
    """Return what ``work`` returns; a cancellation is raised when it has ended, not before."""
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        # Another future than that of the work, which would be cancelled with the task that waits for it.
        ended = task.get_loop().create_future()
        task.add_done_callback(partial(_note, ended))
        try:
            await ended
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        if not task.cancelled():
            task.exception()  # retrieved, or the loop complains
        raise asyncio.CancelledError
    try:
        return task.result()
    finally:
        # The error of a future refers to this frame: a circle, which only the garbage collector would free.
        del task, work


def _note(ended: "asyncio.Future[None]", _: object) -> None:
    if not ended.done():
        ended.set_result(None)
