"""Plans with and without tiles in the same memory: what the planner takes, and what tiles would take.

For each pack the least budget that it runs in on rows, and one in the middle, as ratios go, between that
and all weights in memory: the plan on rows; the one where tiles are allowed; and, whether or not the
planner took any, the plan on rows with each region on the tiles that are predicted to be fastest in no
more strips. Each with its prediction; delays in turns. ``--cpu``: CPU seconds of one thread in place of
delays, which other work on the machine hardly changes.

Run as ``python -m benchmarks.planning.tiles_or_rows PACK... [--rounds 30] [--cpu] [--json]``; packs have
profiles of this machine. Exit 1 where outputs differ, or the planner took tiles that were slower.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.planning.interleaved import delays, over
from models.packs.pack import Pack, open_pack
from models.runtime.sessions import claim_process
from pipeline.devices.base import Device
from pipeline.devices.cpu import CpuDevice
from pipeline.fitting.fit import fit
from pipeline.fitting.judge import predict
from pipeline.fitting.wanted import LEAST, Wanted
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Plan
from pipeline.planning.rows.tilings import tiled_regions
from pipeline.profiles.machine import this_machine
from pipeline.profiles.profile import Profile
from pipeline.profiles.profile_file import load_profile
from pipeline.program.regions import Region, RegionError
from pipeline.program.row_times import phase_seconds
from pipeline.program.steps import planned_region, row_network
from pipeline.schedule.architectures import ARCHITECTURES

_AUTO = ARCHITECTURES["auto"]
# Beside other work no delay is more exact than this.
_SLOWER = 1.03


@dataclass(frozen=True)
class Bench:
    """A pack with its profile; ``rows``: the profile as if no tile had been measured."""

    pack: Pack
    device: Device
    profile: Profile
    rows: Profile

    @classmethod
    def of(cls, path: Path, device: Device) -> "Bench":
        pack = device.fitted(open_pack(path))
        profile = load_profile(pack, this_machine(pack.weights_path, device))
        if not profile.has_tile_times(row_network(pack.manifest)):
            raise SystemExit(f"{path}: its profile has no times of tiles: profile it again")
        fields = profile.model_dump(exclude={"limits"})
        tiles = [key for key in fields["kernels"] if key.startswith("tiles")]
        for key in tiles:
            del fields["kernels"][key]
        return cls(pack, device, profile, Profile.model_validate(fields))

    def run(self, rounds: int, cpu: bool) -> Iterator[dict[str, Any]]:
        """Yield the figures of each budget; ``cpu``: of one thread, its CPU seconds."""
        device = CpuDevice(1) if cpu else self.device
        for name, budget in self._budgets().items():
            plans = self._plans(budget)
            seen = delays(self.pack, device, plans, rounds)
            seconds = {
                which: item.cpu_seconds if cpu else item.seconds for which, item in seen.items()
            }
            yield {
                "model": self.pack.name,
                "budget": name,
                "budget_bytes": budget,
                "regions": len(plans["rows"].choice.regions),
                "equal": len(set().union(*(item.outputs for item in seen.values()))) == 1,
                "plans": {
                    which: {
                        "total_bytes": plan.total_bytes,
                        "tiles": sum(item.columns is not None for item in plan.choice.regions),
                        "predicted_seconds": predict(plan, self.profile).delay_seconds,
                        "seconds": median(seconds[which]),
                        "least_seconds": min(seconds[which]),
                        "over_rows": over(seconds[which], seconds["rows"]),
                    }
                    for which, plan in plans.items()
                },
            }

    def _budgets(self) -> dict[str, int]:
        manifest = self.pack.manifest
        least = fit(manifest, _AUTO, LEAST, self.rows).plan.total_bytes
        most = fit(manifest, ARCHITECTURES["pre"], profile=self.rows).plan.total_bytes
        return {"least": least, "middle": round((least * most) ** 0.5)}

    def _plans(self, budget: int) -> dict[str, Plan]:
        manifest, wanted = self.pack.manifest, Wanted(total_bytes=budget)
        rows = fit(manifest, _AUTO, wanted, self.rows).plan
        regions = tuple(map(self._on_tiles, rows.choice.regions))
        return {
            "rows": rows,
            "allowed": fit(manifest, _AUTO, wanted, self.profile).plan,
            "all tiles": make_plan(manifest, _AUTO, choice=replace(rows.choice, regions=regions)),
        }

    def _on_tiles(self, region: Region) -> Region:
        """Return ``region`` on the fastest tiles of no more strips; as it is where there are none."""
        most, found = self._taken(region), []
        for tiled in tiled_regions(row_network(self.pack.manifest), region):
            taken = self._taken(tiled)
            if taken is not None and most is not None and taken[1] <= most[1]:
                found.append((taken[0], tiled))
        return min(found, key=lambda item: item[0])[1] if found else region

    def _taken(self, region: Region) -> tuple[float, int] | None:
        """Return the seconds and the bytes of strips of ``region``; None: it cannot be."""
        network = row_network(self.pack.manifest)
        try:
            plan = planned_region(self.pack.manifest, region)
        except RegionError:
            return None
        times = self.profile.row_times(network)
        return sum(phase_seconds(network, plan, times)), plan.live_bytes()


def shown(figures: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of one budget."""
    equal = "" if figures["equal"] else "  OUTPUTS DIFFER"
    yield f"{figures['model']}, {figures['budget']}: {figures['budget_bytes'] / 1e6:.2f} MB{equal}"
    rows = figures["plans"]["rows"]
    for which, plan in figures["plans"].items():
        times = "".join(
            f"{1e3 * plan[key]:9.2f}" for key in ("predicted_seconds", "seconds", "least_seconds")
        )
        predicted = plan["predicted_seconds"] / rows["predicted_seconds"]
        yield (
            f"{which:>12}{plan['total_bytes'] / 1e6:8.2f} MB{plan['tiles']:4d} of "
            f"{figures['regions']} on tiles{times}{predicted:8.3f}{plan['over_rows']:8.3f}"
        )


def is_good(figures: dict[str, Any]) -> bool:
    """Return whether all plans have the same bits, and tiles that were taken are no slower."""
    allowed = figures["plans"]["allowed"]
    return bool(figures["equal"] and (not allowed["tiles"] or allowed["over_rows"] <= _SLOWER))


def main() -> None:
    """Run all, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packs", type=Path, nargs="+")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not options.cpu:
        claim_process()
    device, found = CpuDevice(), []
    if not options.json:
        print("predicted, median and least ms; predicted and measured over rows")
    for path in options.packs:
        for figures in Bench.of(path, device).run(options.rounds, options.cpu):
            found.append(figures)
            if not options.json:
                print(*shown(figures), sep="\n", flush=True)
    if options.json:
        print(json.dumps(found, indent=2))
    sys.exit(0 if all(map(is_good, found)) else 1)


if __name__ == "__main__":
    main()
