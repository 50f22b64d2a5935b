"""A pack's layers as seed 002 fuses them: what configurations take, which one to take, one of them run."""

from dataclasses import dataclass
from statistics import median

import numpy as np

from models.packs.checksum import checksum
from models.packs.pack import Pack
from papers.tiles.configuration import TileConfiguration
from papers.tiles.layers import TileError, pack_layers
from papers.tiles.predictor import predict, weight_bytes
from papers.tiles.regions import regions_of
from papers.tiles.search import WideSearch, paper_search
from papers.tiles.tiled_pack import tiled_pack
from pipeline.devices.base import Device
from pipeline.execution.given import Arrays
from pipeline.execution.opened import opened
from pipeline.measuring.sample_inputs import random_inputs
from pipeline.peers.serve import anonymous_bytes
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice, Plan
from pipeline.program.cuts import Region, RegionError
from pipeline.program.prepare import prepare
from pipeline.schedule.architectures import ARCHITECTURES

_SWEEPS = 5


@dataclass(frozen=True, slots=True)
class Ran:
    """What sweeps took: anonymous memory beside the process, usual seconds. ``answers``: their bits."""

    n_bytes: int
    seconds: float
    answers: frozenset[str]


class FusedPack:
    """``pack`` on ``device``, its weights streamed. ``bias_bytes``: what is there beside arena and ring.

    Raises:
        TileError: its layers are no chain, or none of them runs on tiles.
    """

    def __init__(self, pack: Pack, device: Device) -> None:
        self._device = device
        self._program = prepare(tiled_pack(pack), device)
        self.layers = pack_layers(self._program)
        whole = self._planned(())
        self.bias_bytes = whole.session_bytes + whole.scratch_bytes + whole.resident_bytes

    def predicted(self, configuration: TileConfiguration) -> int:
        """Return the memory of a configuration, with the weights that must be there and the bias."""
        weights = max(weight_bytes(self.layers, group) for group in configuration.groups)
        return predict(self.layers, configuration, self.bias_bytes) + weights

    def by_paper(self, limit_bytes: int) -> TileConfiguration:
        """Return what Algorithm 3 takes for a limit by ``predicted``, whether or not it fits."""
        return paper_search(self.layers, limit_bytes, self.predicted)

    def by_wide_search(self, limit_bytes: int) -> TileConfiguration:
        """Return the fastest of the wider search.

        Raises:
            TileError: none takes less than the limit.
        """
        found = WideSearch(self.layers).find(limit_bytes, self.bias_bytes)
        if found is None:
            raise TileError(
                f"{self._program.name}: no configuration takes less than {limit_bytes:,} bytes"
            )
        return found

    def plan(self, configuration: TileConfiguration) -> Plan:
        """Return the plan of a configuration.

        Raises:
            TileError: it has other layers than the pack, or a group of it cannot run.
        """
        regions = regions_of(self._program, self.layers, configuration)
        try:
            return self._planned(regions)
        except RegionError as exc:
            raise TileError(f"{self._program.name}: {configuration}: {exc}") from exc

    def run(self, plan: Plan) -> Ran:
        """Run sweeps on drawn inputs."""
        inputs, base, most, seconds = random_inputs(self._program), anonymous_bytes(), 0, []
        answers = set[str]()
        with opened(self._program, plan, self._device) as engine:
            for _ in range(_SWEEPS):
                answered, statistics = engine.answer(inputs, _checksums)
                answers.add(answered)
                seconds.append(statistics.delay_seconds)
                most = max(most, anonymous_bytes())
        return Ran(most - base, median(seconds), frozenset(answers))

    def run_whole(self) -> Ran:
        """Run the network without tiles."""
        return self.run(self._planned(()))

    def _planned(self, regions: tuple[Region, ...]) -> Plan:
        choice = Choice(regions=regions)
        return make_plan(self._program, ARCHITECTURES["auto"], choice=choice)


def _checksums(outputs: Arrays) -> str:
    """Return what tells answers apart: copies of them would be memory of the request."""
    return " ".join(checksum(np.ascontiguousarray(outputs[name]).data) for name in sorted(outputs))
