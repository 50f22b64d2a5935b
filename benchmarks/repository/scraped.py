"""Is every scrape answered while models come and go? Metrics every 10 ms during 1,000 loads and unloads.

Two models are loaded and unloaded in turns; a third one serves all the time. Every scrape must be a 200
that ends whole and has the metrics of the model that serves; every load and unload must succeed.

Run as ``python -m benchmarks.repository.scraped [--changes 1000] [--every 0.01]``; prints JSON, exit 1
where one was not.
"""

import argparse
import http.client
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from benchmarks.load.percentiles import summary_ms
from benchmarks.servers.client import KeptClient, beside, process_memory
from benchmarks.servers.served import Served, ours, running
from benchmarks.servers.small_models import tiny
from benchmarks.turns import end
from models.compiler import compile_onnx

_STAYS = "stays"
_TURNS = ("first", "second")
_SECONDS = 60.0


class Scraper:
    """Asks for metrics every ``every`` seconds on one connection."""

    def __init__(self, port: int, every: float) -> None:
        self.seen: Counter[str] = Counter()
        self.delays: list[float] = []
        self._port, self._every = port, every

    def run(self, over: threading.Event) -> None:
        """Ask until it is ``over``."""
        client = KeptClient(self._port, _SECONDS)
        while not over.is_set():
            began = time.monotonic()
            try:
                self.seen[_outcome(*client.ask("GET", "/metrics"))] += 1
            except (OSError, http.client.HTTPException) as exc:
                self.seen[type(exc).__name__] += 1
                client.close()
            self.delays.append(time.monotonic() - began)
            over.wait(max(0.0, self._every - self.delays[-1]))
        client.close()


def _outcome(status: int, text: bytes) -> str:
    """Return the status of one scrape, and what is wrong with what it says."""
    if status == http.client.OK and not text.endswith(b"\n"):
        return "200 cut off"
    if status == http.client.OK and b'model="%b"' % _STAYS.encode() not in text:
        return "200 without a model that serves"
    return str(status)


def _change(served: Served, changes: int) -> Counter[str]:
    """Load and unload in turns; return the statuses."""
    seen: Counter[str] = Counter()
    client = KeptClient(served.port, _SECONDS)
    for number in range(changes):
        name = _TURNS[number // 2 % len(_TURNS)]
        what = ("unload", "load")[number % 2]
        status, _ = client.ask("POST", f"/v2/repository/models/{name}/{what}", b"{}")
        seen[f"{what} {status}"] += 1
    client.close()
    return seen


def measure(folder: Path, changes: int, every: float) -> dict[str, object]:
    """Serve, change, scrape; return all figures."""
    source = tiny(folder)
    for name in (_STAYS, *_TURNS):
        compile_onnx(source, folder / "repository" / name)
    with running(ours(folder / "repository", "16MiB"), "--port") as served:
        _change(served, 4)
        before = process_memory(served.pid)["rss_anonymous_bytes"]
        began = time.monotonic()
        scraper = Scraper(served.port, every)
        with beside(scraper.run):
            changed = _change(served, changes)
        seconds = time.monotonic() - began
        after = process_memory(served.pid)["rss_anonymous_bytes"]
    return {
        "seconds": round(seconds, 1),
        "changes": dict(changed),
        "scrapes": dict(scraper.seen),
        "scrape": summary_ms(scraper.delays),
        "anonymous_bytes": {"before": before, "after": after},
        "holds": set(scraper.seen) == {"200"} and set(changed) == {"load 200", "unload 200"},
    }


def main() -> None:
    """Run it and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, default=1000)
    parser.add_argument("--every", type=float, default=0.01, help="seconds between two scrapes")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=".") as text:
        found = measure(Path(text).resolve(), options.changes, options.every)
    end(found, bool(found["holds"]))


if __name__ == "__main__":
    main()
