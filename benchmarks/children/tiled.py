"""One plan on tiles or rows, run: ``python -m benchmarks.children.tiled PACK REGIONS SWEEPS RESULT.json``.

REGIONS: JSON, a list of the fields of regions. Writes what the process had before and had at most of
anonymous memory, page faults that read a disk, and a checksum of the outputs.
"""

import json
import resource
import sys
from pathlib import Path

from benchmarks.children.planned import anonymous_bytes, checksums
from models.packs.pack import open_pack
from models.runtime.sessions import claim_process
from pipeline.devices.cpu import CpuDevice
from pipeline.execution.opened import opened
from pipeline.measuring.sample_inputs import random_inputs
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice
from pipeline.program.regions import Region
from pipeline.schedule.architectures import ARCHITECTURES


def main() -> None:
    """Plan, run, write."""
    path, regions, sweeps, result = sys.argv[1:]
    claim_process()
    device = CpuDevice()
    pack = device.fitted(open_pack(Path(path)))
    choice = Choice(regions=tuple(Region(*fields) for fields in json.loads(regions)))
    plan = make_plan(pack.manifest, ARCHITECTURES["auto"], choice=choice)
    inputs = random_inputs(pack.manifest)
    base, most, outputs = anonymous_bytes(), 0, []
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
    with opened(pack, plan, device) as engine:
        for _ in range(int(sweeps)):
            outputs.append(engine.answer(inputs, checksums)[0])
            most = max(most, anonymous_bytes())
    figures = {
        "base_bytes": base,
        "most_bytes": most,
        "planned": plan.memory,
        "macs_ratio": plan.as_dict()["macs_ratio"],
        "major_faults": resource.getrusage(resource.RUSAGE_SELF).ru_majflt - faults,
        "outputs": sorted(set(outputs)),
    }
    Path(result).write_text(json.dumps(figures), "utf-8")


if __name__ == "__main__":
    main()
