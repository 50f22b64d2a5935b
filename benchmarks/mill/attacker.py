"""The process of one phase: plays its attacks at once until the time is over, then says what came back.

Run as ``python -m benchmarks.mill.attacker PORT SECONDS SEED SOURCES ATTACK...``; prints JSON. It is nice
to the server, whose cores it shares: clients of a real one have their own.
"""

import asyncio
import json
import os
import resource
import sys

from benchmarks.mill.attacks import ATTACKS
from benchmarks.mill.target import AttackedServer

_NICE = 10


async def _play(
    port: int, seconds: float, seed: int, sources: tuple[str, ...], names: list[str]
) -> dict[str, dict[str, int]]:
    targets = {
        name: AttackedServer(port, sources, seconds, seed + index)
        for index, name in enumerate(names)
    }
    await asyncio.gather(
        asyncio.sleep(0 if names else seconds),
        *(ATTACKS[name](target) for name, target in targets.items()),
    )
    return {name: dict(target.seen.most_common()) for name, target in targets.items()}


def main() -> None:
    """Play and print."""
    os.nice(_NICE)
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    port, seconds, seed, sources, *names = sys.argv[1:]
    addresses = tuple(sources.split(","))
    print(json.dumps(asyncio.run(_play(int(port), float(seconds), int(seed), addresses, names))))


if __name__ == "__main__":
    main()
