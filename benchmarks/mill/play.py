"""The mill at work: good clients all the time, phases of attacks beside them, then an end."""

import asyncio
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.machine.processes import cpu_seconds
from benchmarks.mill.attacks import ATTACKS
from benchmarks.mill.errands import Errand
from benchmarks.mill.good import Book, GoodClient
from benchmarks.mill.measuring import Counts, PeakSampler, count
from benchmarks.servers.served import Served
from models.processes import child_environment, python_command

#: What a phase without an attack is called.
CALM = "calm"
_PAUSE = 1.0  # seconds before the next phase, so that its figures are its own
_MIXED = 4  # attacks at once in the last phase of a round
_GRACE = 30.0  # seconds that an attacker may need longer than its phase


@dataclass
class MillResult:
    """What happened; the rest is arithmetic."""

    book: Book
    phases: list[dict[str, Any]] = field(default_factory=list)
    died_in: str | None = None
    last: Counts | None = None
    settled_seconds: float | None = None
    """Until nothing was open any more; None: it was not within the time."""


def plan_phases(
    names: Sequence[str], generator: random.Random, beside_calm: bool = False
) -> list[list[str]]:
    """Return one round: every attack alone, in random order, then a few at once.

    ``beside_calm``: a phase without an attack before each that has one.
    """
    phases = [[name] for name in generator.sample(names, len(names))]
    if len(names) >= _MIXED:
        phases.append(generator.sample(names, _MIXED))
    return [each for phase in phases for each in ([], phase)] if beside_calm else phases


def sources(addresses: int) -> str:
    """Return the addresses that attacks come from; good clients have 127.0.0.1."""
    return ",".join(f"127.0.0.{2 + index}" for index in range(addresses))


class Mill:
    """One run against a server that is ready."""

    def __init__(self, served: Served, errands: list[Errand], sampler: PeakSampler) -> None:
        self._served, self._errands, self._sampler = served, errands, sampler
        self._played = MillResult(Book())

    async def warm_up(self) -> Counts:
        """Ask each errand a few times, as many at once as there are; return what is open afterwards."""
        for errand in self._errands:
            asking = [self._client(errand) for _ in range(8)]
            await asyncio.gather(*(client.ask_once() for client in asking))
        await asyncio.sleep(0.5)
        return count(self._served.pid, self._served.port)

    async def play(
        self,
        names: Sequence[str],
        seconds: float,
        phase_seconds: float,
        addresses: int,
        seed: int,
        beside_calm: bool = False,
    ) -> MillResult:
        """Play rounds of phases until ``seconds`` are over or the server is dead."""
        generator, stop = random.Random(seed), asyncio.Event()
        end = time.monotonic() + seconds
        running = [asyncio.create_task(self._client(each).run(stop)) for each in self._errands]
        running.append(asyncio.create_task(self._sampler.run(stop)))
        try:
            while time.monotonic() < end and self._played.died_in is None:
                for attacks in plan_phases(names, generator, beside_calm):
                    left = min(phase_seconds, end - time.monotonic())
                    if left < 1 or self._played.died_in is not None:
                        break
                    await self._phase(attacks, left, sources(addresses), generator.randrange(10**6))
        finally:
            self._played.book.phase = "end"
            stop.set()
            await asyncio.gather(*running)
        self._sampler.take()
        return self._played

    async def settle(self, start: Counts, slack: int, seconds: float) -> None:
        """Wait until nothing more is open than at the ``start``, ``slack`` threads apart.

        A request now and then lets pools that end idle threads when they are used do so.
        """
        began = time.monotonic()
        while time.monotonic() < began + seconds and self._played.died_in is None:
            await self.last_requests()
            await asyncio.sleep(0.5)
            now = count(self._served.pid, self._served.port)
            self._played.last = now
            if (
                now.connections == 0
                and now.files <= start.files
                and now.threads <= start.threads + slack
            ):
                self._played.settled_seconds = round(time.monotonic() - began, 1)
                return
            await asyncio.sleep(2)

    async def last_requests(self) -> None:
        """Ask each errand once more."""
        self._played.book.phase = "last"
        for errand in self._errands:
            await self._client(errand).ask_once()

    def _client(self, errand: Errand) -> GoodClient:
        return GoodClient(errand, self._served.port, self._played.book)

    async def _phase(self, attacks: list[str], seconds: float, addresses: str, seed: int) -> None:
        name = "+".join(attacks) or CALM
        self._played.book.phase = name
        self._sampler.take()
        print(f"{time.strftime('%H:%M:%S')} {name}", file=sys.stderr, flush=True)
        cpu_before = cpu_seconds(self._served.pid)
        given = [str(self._served.port), f"{seconds:.1f}", str(seed), addresses]
        attacker = await asyncio.create_subprocess_exec(
            *python_command("benchmarks.mill.attacker", *given, *attacks),
            stdout=asyncio.subprocess.PIPE,
            env=child_environment(),
        )  # fmt: skip
        attack = asyncio.ensure_future(attacker.communicate())
        late = time.monotonic() + seconds + _GRACE
        while not attack.done() and self._is_alive() and time.monotonic() < late:
            await asyncio.wait([attack], timeout=0.5)
        if not attack.done():
            attacker.kill()
        output, _ = await attack
        await asyncio.sleep(_PAUSE)
        seen = json.loads(output) if output else f"the attacker ended with {attacker.returncode}"
        phase = {"phase": name, "attackers": seen, "peak": self._sampler.take()}
        if self._is_alive():
            phase["cpu_seconds"] = round(cpu_seconds(self._served.pid) - cpu_before, 2)
        else:
            self._played.died_in = name
        self._played.phases.append(phase)

    def _is_alive(self) -> bool:
        return self._served.process.poll() is None


def known(names: str) -> list[str]:
    """Return the attacks named in ``names``, separated by commas; all when it is empty.

    Raises:
        ValueError: there is no such attack.
    """
    chosen = [name for name in names.split(",") if name]
    for name in chosen:
        if name not in ATTACKS:
            raise ValueError(f"no attack called {name!r}; there are {', '.join(ATTACKS)}")
    return chosen or list(ATTACKS)
