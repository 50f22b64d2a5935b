"""Times of requests with right, wrong and no keys: ``python -m benchmarks.access.keys [--rounds 400]``.

Requests of each kind take turns on one kept connection of ``layerstream serve``; prints JSON. Some keys
differ from a valid one in their first, middle or last character: their times should not show which. Exit
status 1 where medians of wrong keys are further apart than ``--noise`` of the distance between quartiles.
"""

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.load.messages import request_bytes
from benchmarks.mill.errands import build_repository
from benchmarks.mill.wire import Wire
from benchmarks.servers.served import ours, running
from benchmarks.turns import end
from server.access import add_key, new_key

_PATH = "/v2"
_OTHERS = 200  # keys beside the one that is nearly guessed


def _changed(key: str, index: int) -> str:
    """Return ``key`` with another character at ``index``."""
    other = "A" if key[index] != "A" else "B"
    return key[:index] + other + key[index:][1:]


def _kinds(key: str) -> dict[str, str]:
    """Return what is sent by kind; empty: nothing."""
    return {
        "right": key,
        "first_character": _changed(key, 4),
        "middle_character": _changed(key, len(key) // 2),
        "last_character": _changed(key, len(key) - 1),
        "nobody_s": new_key(),
        "none": "",
    }


async def _measure(port: int, kinds: dict[str, str], rounds: int) -> dict[str, list[float]]:
    generator = random.Random(0)
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    requests = {
        kind: request_bytes("GET", _PATH, b"", {"Authorization": f"Bearer {key}"} if key else {})
        for kind, key in kinds.items()
    }
    async with await Wire().connect(port, "127.0.0.1") as wire:
        for turn in range(rounds + 10):
            for kind in generator.sample(list(kinds), len(kinds)):
                began = time.perf_counter()
                response = await wire.ask(requests[kind])
                passed = time.perf_counter() - began
                assert response.status == (200 if kind == "right" else 401)
                if turn >= 10:
                    seconds[kind].append(passed)
    return seconds


def _figures(seconds: list[float]) -> dict[str, float]:
    low, middle, high = statistics.quantiles(seconds, n=4)
    return {"median_us": round(middle * 1e6, 1), "quartiles_us": round((high - low) * 1e6, 1)}


def main() -> None:
    """Measure, print, and judge."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.access.keys", description=__doc__)
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--noise", type=float, default=0.5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=".") as name:
        folder = Path(name)
        for index in range(_OTHERS):
            add_key(folder / "keys", f"other-{index}", "infer")
        key = add_key(folder / "keys", "one", "infer")
        command = ours(build_repository(folder), "64MiB", "--keys", str(folder / "keys"))
        with running(command, "--port") as served:
            seconds = asyncio.run(_measure(served.port, _kinds(key), options.rounds))
    by_kind = {kind: _figures(each) for kind, each in seconds.items()}
    wrong = [figures for kind, figures in by_kind.items() if kind not in {"right", "none"}]
    medians = [each["median_us"] for each in wrong]
    apart = max(medians) - min(medians)
    noise = options.noise * max(each["quartiles_us"] for each in wrong)
    equal = apart <= noise
    end({"kinds": by_kind, "apart_us": round(apart, 1), "noise_us": noise, "equal": equal}, equal)


if __name__ == "__main__":
    main()
