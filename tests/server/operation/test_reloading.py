"""Reading again: every step each time, whatever fails."""

import asyncio

import pytest

from server.operation.notify import Notifier
from server.operation.reloading import Reloading, Step
from tests.server.support import LIMIT_SECONDS


class Said(Notifier):
    """Keeps what the service manager would be told."""

    def __init__(self) -> None:
        super().__init__("@nobody", None)
        self.messages: list[str] = []
        self.ready_again = asyncio.Semaphore(0)

    def _send(self, message: str) -> None:
        self.messages.append(message.partition("\n")[0])
        if message.startswith("READY=1"):
            self.ready_again.release()


async def test_each_asking_takes_every_step(caplog: pytest.LogCaptureFixture) -> None:
    taken: list[str] = []
    notifier = Said()

    def step(name: str) -> Step:
        async def take() -> None:
            taken.append(name)
            if name == "bad":
                raise ValueError("spoilt")

        return take

    names = ("first", "bad", "last")
    reloading = Reloading({name: step(name) for name in names}, notifier, lambda: "2 models")
    reloading.ask()  # before it has begun: not forgotten
    reloading.begin()
    await asyncio.wait_for(notifier.ready_again.acquire(), LIMIT_SECONDS)
    reloading.ask()
    await asyncio.wait_for(notifier.ready_again.acquire(), LIMIT_SECONDS)
    reloading.end()
    reloading.ask()
    assert taken == [*names, *names]
    assert notifier.messages == ["RELOADING=1", "READY=1"] * 2
    assert "bad not read again: spoilt" in caplog.text


async def test_asked_while_it_reads_it_reads_once_more() -> None:
    notifier, gate, turns = Said(), asyncio.Event(), 0

    async def slow() -> None:
        nonlocal turns
        turns += 1
        reloading.ask() if turns == 1 else None
        await gate.wait()

    reloading = Reloading({"slow": slow}, notifier, str)
    reloading.ask()
    reloading.begin()
    gate.set()
    for _ in range(2):
        await asyncio.wait_for(notifier.ready_again.acquire(), LIMIT_SECONDS)
    reloading.end()
    assert turns == 2
