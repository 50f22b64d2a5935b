"""Seed 002 on this machine: fused tiles of YOLOv2's first 16 layers, memory and delay beside predictions.

1. Memory of 20 configurations, each in a process of its own, beside the predictor's figure. The bias is
   what three of other configurations took more than predicted without one, in the middle.
2. Delays of all of them, in turns; for each limit the configuration that Algorithm 3 and the wider search
   take, by this predictor and bias, beside the fastest that was measured and fits.
3. The network on rows, as the planner finds it, in no more memory than each chosen configuration.
4. The least limit, in a memory cgroup of that and what the process had before, and no swap.

All weights stream. Run as ``python -m benchmarks.planning.tiles [--pack PACK] [--rounds 15] [--json]``;
without a pack it makes one. Exit 1 where outputs differ, a prediction is more than 10 % off, or what the
wider search takes is more than 6 % slower than the best.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import astuple, replace
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.paper.fused_network import LAYERS, fused_pack
from benchmarks.planning.interleaved import delays
from models.packs.manifest import Manifest
from models.packs.pack import open_pack
from models.runtime.sessions import claim_process
from pipeline.devices.cpu import CpuDevice
from pipeline.fitting.row_variants import row_variants
from pipeline.peers.cgroup import memory_group
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice, Plan
from pipeline.profiles.machine import this_machine
from pipeline.profiles.profile import Profile, ProfileError
from pipeline.profiles.profile_file import load_profile
from pipeline.program.regions import Region
from pipeline.schedule.architectures import ARCHITECTURES
from pipeline.tiles.configuration import Configuration, Tiling, parse
from pipeline.tiles.layers import FusedLayer, pack_layers
from pipeline.tiles.predictor import predict, weight_bytes
from pipeline.tiles.regions import regions_of
from pipeline.tiles.search import WideSearch, paper_search

_MB = 1_000_000
_LIMITS = (96, 64, 32, 16)
_CALIBRATING = ("1x1/8/3x3", "4x4/8/4x4 raster", "6x6/8/2x2")
_CONFIGURATIONS = (
    *("1x1/NoCut", "2x2/NoCut", "2x2/NoCut raster", "3x3/NoCut checkerboard", "1x1/8/2x2"),
    *("2x2/8/2x2", "3x3/8/2x2", "4x4/8/2x2", "5x5/8/2x2", "5x5/8/3x3"),
    *("3x3/8/2x2 raster", "5x5/8/2x2 raster", "5x5/8/2x2 checkerboard", "2x2/12/2x2"),
    *("2x2/12/2x2 raster", "3x3/4/2x2", "5x5/4/2x2 raster", "4x2/8/1x1 raster"),
    *("5x5/8/1x1 raster", "5x5/4/3x3/12/1x1 raster"),
)
_TOLERANCE, _SLOWER = 0.10, 0.06
# Beside the anonymous memory of the process: page tables, sockets, and files that it maps.
_KERNEL_BYTES = 4 * _MB

Regions = tuple[Region, ...]


def measured(pack: Path, regions: Regions, limit_bytes: int | None = None) -> dict[str, Any]:
    """Run one plan in a process, in a cgroup where there is a limit; return its figures."""
    fields = json.dumps([astuple(region) for region in regions])
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        result = Path(folder) / "result.json"
        command = [sys.executable, "-m", "benchmarks.children.tiled"]
        command += [str(pack), fields, "3", str(result)]
        if limit_bytes is None:
            subprocess.run(command, check=True)
            return dict(json.loads(result.read_text("utf-8")))
        group = stack.enter_context(memory_group("tiles", limit_bytes))
        process = group.start(command)
        _, errors = process.communicate()
        if process.returncode:
            return {"failed": errors[-300:], "oom_kills": group.oom_kills}
        return {**json.loads(result.read_text("utf-8")), "oom_kills": group.oom_kills}


class Bench:
    """The pack ``path``, its layers, and what is known of configurations, by name."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.device = CpuDevice()
        self.pack = self.device.fitted(open_pack(path))
        self.layers: tuple[FusedLayer, ...] = pack_layers(self.pack.manifest)
        self.bias_bytes = 0

    @property
    def manifest(self) -> Manifest:
        return self.pack.manifest

    def regions(self, configuration: Configuration) -> Regions:
        return regions_of(self.manifest, self.layers, configuration)

    def plan(self, regions: Regions) -> Plan:
        return make_plan(self.manifest, ARCHITECTURES["auto"], choice=Choice(regions=regions))

    def predicted(self, configuration: Configuration) -> int:
        """Return the predictor's figure, with weights that must be there and the bias so far."""
        weights = max(weight_bytes(self.layers, group) for group in configuration.groups)
        return predict(self.layers, configuration, self.bias_bytes) + weights

    def predicted_first(self, configuration: Configuration) -> int:
        """Return ``predicted`` of a configuration of the paper's layers alone."""
        return self.predicted(self.with_last(configuration))

    def with_last(self, configuration: Configuration) -> Configuration:
        """Return ``configuration`` with what the pack has behind the paper's layers, to its last group.

        That puts the output in the order that everybody reads.
        """
        *groups, last = configuration.groups
        return Configuration((*groups, replace(last, end=len(self.layers))))

    def calibrate(self) -> None:
        """Measure the bias."""
        more = []
        for name in _CALIBRATING:
            configuration = parse(name, len(self.layers))
            figures = measured(self.path, self.regions(configuration))
            taken = figures["most_bytes"] - figures["base_bytes"]
            more.append(taken - self.predicted(configuration))
        self.bias_bytes = int(statistics.median(more))

    def memory(self, configuration: Configuration) -> dict[str, Any]:
        """Return predicted and measured memory of one configuration."""
        figures = measured(self.path, self.regions(configuration))
        taken, predicted = (
            figures["most_bytes"] - figures["base_bytes"],
            self.predicted(configuration),
        )
        return {
            "predicted_bytes": predicted,
            "measured_bytes": taken,
            "error": predicted / taken - 1,
            "macs_ratio": figures["macs_ratio"],
            "outputs": figures["outputs"],
        }

    def delays(self, plans: Mapping[str, Regions], rounds: int) -> dict[str, list[float]]:
        """Return the delays of each plan in seconds; they take turns, in another order each time."""
        planned = {name: self.plan(regions) for name, regions in plans.items()}
        found = delays(self.pack, self.device, planned, rounds)
        return {name: list(item.seconds) for name, item in found.items()}

    def on_rows(self, most_bytes: int) -> Regions | None:
        """Return the fastest variant on rows whose plan takes no more; by the profile, if there is one."""
        for variant in row_variants(self.manifest, ARCHITECTURES["auto"], self._profile()):
            if self.plan(variant.regions).total_bytes <= most_bytes:
                return variant.regions
        return None

    def _profile(self) -> Profile | None:
        with suppress(ProfileError):
            return load_profile(self.pack, this_machine(self.pack.weights_path, self.device))
        return None


def wide_tilings() -> Iterable[Tiling]:
    """Yield all tilings up to 5 x 5 whose tiles reuse what others made."""
    return (Tiling(down, across, "raster") for down, across in product(range(1, 6), repeat=2))


def run(path: Path, rounds: int) -> dict[str, Any]:
    """Measure all; return figures."""
    bench = Bench(path)
    bench.calibrate()
    search = WideSearch(bench.layers, wide_tilings())
    count = len(bench.layers)
    plans = {name: parse(name, count) for name in _CONFIGURATIONS}
    memory = {name: bench.memory(configuration) for name, configuration in plans.items()}
    chosen: dict[str, dict[str, str | None]] = {}
    for limit in _LIMITS:
        wide = search.find(limit * _MB, bench.bias_bytes)
        by_paper = bench.with_last(
            paper_search(bench.layers[:LAYERS], limit * _MB, bench.predicted_first)
        )
        chosen[str(limit)] = {"wide": str(wide) if wide else None, "algorithm 3": str(by_paper)}
        plans |= {str(item): item for item in (wide, by_paper) if item}
    regions = {name: bench.regions(configuration) for name, configuration in plans.items()}
    rows = {}
    for text, found in chosen.items():
        name = found["wide"]
        on_rows = bench.on_rows(bench.plan(regions[name]).total_bytes) if name else None
        if on_rows is not None:
            rows[f"rows, as much as {text}"] = on_rows
    delays = bench.delays({**regions, **rows}, rounds)
    seconds = {name: statistics.median(found) for name, found in delays.items()}
    choices = {
        limit: _judged(bench, limit, found, plans, seconds) for limit, found in chosen.items()
    }
    tight = chosen[str(_LIMITS[-1])]["wide"]
    return {
        "bias_bytes": bench.bias_bytes,
        "memory": memory,
        "seconds": seconds,
        "least_seconds": {name: min(found) for name, found in delays.items()},
        "choices": choices,
        "rows": {name: bench.plan(item).total_bytes for name, item in rows.items()},
        "totals": {name: bench.plan(item).total_bytes for name, item in regions.items()},
        "limited": _limited(bench, regions[tight]) if tight else None,
    }


def _judged(
    bench: Bench,
    limit: str,
    found: Mapping[str, str | None],
    plans: Mapping[str, Configuration],
    seconds: Mapping[str, float],
) -> dict[str, Any]:
    """Return what was chosen for ``limit`` beside the fastest of all that were measured and fit."""
    fitting = [name for name, item in plans.items() if bench.predicted(item) < int(limit) * _MB]
    best = min(fitting, key=lambda name: seconds[name], default=None)
    slower = {
        who: seconds[name] / seconds[best] - 1
        for who, name in found.items()
        if name in fitting and best is not None
    }
    return {"chosen": dict(found), "best": best, "slower": slower}


def _limited(bench: Bench, regions: Regions) -> dict[str, Any]:
    """Run the least limit's choice in a cgroup that holds the process before it, and the limit."""
    base = measured(bench.path, ())["base_bytes"]
    limit = base + _LIMITS[-1] * _MB + _KERNEL_BYTES
    return {"limit_bytes": limit, **measured(bench.path, regions, limit)}


def shown(figures: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the tables; of delays the median and the least."""
    yield f"bias {figures['bias_bytes'] / _MB:.2f} MB"
    yield ""
    yield f"{'configuration':>28}{'predicted':>10}{'measured':>10}{'error':>8}{'MACs':>7}{'ms':>14}"
    for name, item in figures["memory"].items():
        sizes = f"{item['predicted_bytes'] / _MB:10.2f}{item['measured_bytes'] / _MB:10.2f}"
        rest = f"{item['error']:+8.1%}{item['macs_ratio']:7.3f}{_times(figures, name):>14}"
        yield f"{name:>28}{sizes}{rest}"
    for limit, item in figures["choices"].items():
        yield ""
        for who, name in item["chosen"].items():
            slower = item["slower"].get(who)
            told = "does not fit" if slower is None else f"{slower:+.1%} to {item['best']}"
            times = _times(figures, name) if name else ""
            yield f"{limit:>4} MB {who:>12}: {name} {times} {told}"
        rows = f"rows, as much as {limit}"
        if rows in figures["seconds"]:
            yield f"{limit:>4} MB {'rows':>12}: {_times(figures, rows)}"
    yield ""
    yield f"limited: {json.dumps(figures['limited'])}"


def _times(figures: Mapping[str, Any], name: str) -> str:
    return f"{1e3 * figures['seconds'][name]:.1f} {1e3 * figures['least_seconds'][name]:.1f}"


def is_good(figures: Mapping[str, Any]) -> bool:
    """Return whether all have the bits of the whole, and predictions and choices are close enough."""
    memory = figures["memory"].values()
    outputs = {text for item in memory for text in item["outputs"]}
    near = all(abs(item["error"]) <= _TOLERANCE for item in memory)
    chosen = [item["slower"].get("wide") for item in figures["choices"].values()]
    return len(outputs) == 1 and near and all(x is not None and x <= _SLOWER for x in chosen)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pack", type=Path)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    claim_process()
    with tempfile.TemporaryDirectory() as folder:
        figures = run(options.pack or fused_pack(Path(folder)), options.rounds)
    print(json.dumps(figures, indent=2) if options.json else "\n".join(shown(figures)))
    sys.exit(0 if is_good(figures) else 1)


if __name__ == "__main__":
    main()
