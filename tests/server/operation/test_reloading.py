"""Reading again: every step each time, whatever fails."""

import asyncio
from collections import Counter

import pytest

from server.operation.notify import Notifier
from server.operation.reloading import Reloading, Step
from tests.server.support import LIMIT_SECONDS


class Said(Notifier):
    """Keeps the messages to the service manager."""

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
    assert caplog.messages[-1] == "not read again, and as before: bad; 2 models"


async def test_who_asks_while_models_are_read_has_keys_read_at_once() -> None:
    notifier, gate, keys = Said(), asyncio.Event(), asyncio.Semaphore(0)
    turns = Counter[str]()

    async def quick() -> None:
        turns["keys"] += 1
        keys.release()

    async def slow() -> None:
        turns["models"] += 1
        await gate.wait()

    reloading = Reloading({"models": slow, "keys": quick}, notifier, str)
    reloading.begin()
    for _ in range(3):
        reloading.ask()
        await asyncio.wait_for(keys.acquire(), LIMIT_SECONDS)
    assert turns == {"keys": 3, "models": 1}
    assert notifier.messages == ["RELOADING=1"] * 3
    gate.set()
    await asyncio.wait_for(notifier.ready_again.acquire(), LIMIT_SECONDS)
    reloading.end()
    assert turns == {"keys": 3, "models": 2}, "what was read may be older than the wish"
    assert notifier.messages == ["RELOADING=1"] * 3 + ["READY=1"]
