"""What users want to know of a pack: ``compile`` and ``inspect`` say it."""

import logging
from dataclasses import asdict
from typing import Any

from models.detection.recipe import Detection
from models.packs.manifest import Manifest
from models.packs.pack import Pack
from models.packs.records.ports import DesignedMemory, Port
from pipeline.devices.base import Device
from pipeline.fitting.fit import fit
from pipeline.fitting.trade_off import costs_of_least
from pipeline.fitting.wanted import LEAST
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Plan
from pipeline.profiles.found_plans_file import plans_of
from pipeline.profiles.profile import ProfileError
from pipeline.profiles.profile_file import find_profile
from pipeline.program.choice import choose_pieces, largest_unit_bytes, scratch_bytes, shared_bytes
from pipeline.program.prepare import prepare
from pipeline.program.program import Program
from pipeline.program.sessions import session_bytes
from pipeline.schedule.architectures import ARCHITECTURES
from server.memory.process_memory import process_bytes
from server.memory.request_needs import Need, smallest_budgets

# Of the smallest budget, what is worth a line of its own: a quarter.
_LARGE = 4


def summary_of(pack: Pack, cpu: Device) -> dict[str, Any]:
    """Return what users want to know of a pack: sizes in bytes, counts, ports.

    What kernels take is that of ``cpu``, as ``plan`` and ``serve`` have it; of a GPU's pack it is as
    compiled, since only its device could say more.
    """
    manifest = pack.manifest
    program = Program.as_compiled(pack) if manifest.target.capability else prepare(pack, cpu)
    known = plans_of(pack)
    least = fit(program, ARCHITECTURES["auto"], LEAST, None, known).plan
    known.save()
    needs = [Need.of(manifest)]
    budgets = smallest_budgets(least.total_bytes, needs)
    return {
        "model": pack.name,
        "version": pack.version,
        "folder": str(pack.folder),
        "target": manifest.target.model_dump(),
        "layers": len(manifest.layers),
        "parameters": manifest.parameters,
        "weight_bytes": manifest.weight_bytes,
        "store": manifest.store,
        "expands": manifest.expands,
        "file_bytes": manifest.files["weights.bin"].n_bytes,
        "expanded_bytes": sum(span.length for span in manifest.spans),
        "shared_bytes": shared_bytes(program),
        "largest_layer_bytes": manifest.largest_layer_bytes,
        "largest_chunk_bytes": manifest.largest_chunk_bytes,
        "largest_joined_bytes": largest_unit_bytes(program, choose_pieces(program, None)),
        "spans": len(manifest.spans),
        "pieces": len(manifest.pieces),
        "sessions": len(manifest.graphs),
        "smallest_budget_bytes": budgets.full_bytes,
        "pictures_budget_bytes": budgets.bare_bytes,
        "smallest_memory_bytes": (
            None if manifest.target.capability else budgets.full_bytes + process_bytes(1)
        ),
        "costs": [] if manifest.target.capability else _costs(program, least, cpu, needs),
        "arena_bytes": make_plan(program, ARCHITECTURES["2s"]).arena_bytes,
        "scratch_bytes": scratch_bytes(program.pieces),
        "unrolled": _unrolled(program, least),
        "session_bytes": session_bytes(program, program.pieces),
        "inputs": [
            {**_port(port), "optional": port.default is not None} for port in manifest.inputs
        ],
        "outputs": [_port(port) for port in manifest.outputs],
        "preprocess": manifest.preprocess and manifest.preprocess.model_dump(),
        "labels": _label_count(manifest),
        "detection": manifest.detection and _detector(manifest.detection),
        "segmentation": manifest.segmentation
        and manifest.segmentation.model_dump(exclude={"labels"}),
        "source_sizes": manifest.source_sizes and manifest.source_sizes.model_dump(),
        "designed": manifest.designed and _designed(manifest.designed),
        "resident_pieces": [asdict(piece) for piece in manifest.resident_pieces],
        "bottlenecks": [
            {"channels": item.channels, "groups": list(item.sizes)} for item in manifest.bottlenecks
        ],
    }


def _unrolled(program: Program, least: Plan) -> dict[str, Any] | None:
    """Return the layer that unrolls most in the ``least`` plan, where that is a large part of it."""
    found = (
        {"layer": layer.name, "operator": layer.operator, "bytes": piece.unrolled.whole_bytes}
        for layer in program.layers
        for piece in program.pieces[layer.first_piece : layer.end_piece]
        if piece.unrolled is not None
        and piece.scratch_bytes == least.scratch_bytes
        and piece.unrolled.whole_bytes * _LARGE >= least.total_bytes
    )
    return next(found, None)


def _costs(program: Program, least: Plan, cpu: Device, needs: list[Need]) -> list[dict[str, Any]]:
    """Return how many times as long as with all memory requests take: in the smallest budget, in more."""
    profile = find_profile(program.pack, cpu, logging.DEBUG)
    try:
        found = costs_of_least(program, least, profile=profile)
    except ProfileError:  # it was measured before there were rows, or on other kernels
        found = costs_of_least(program, least)
    return [
        {
            "budget_bytes": smallest_budgets(cost.total_bytes, needs).full_bytes,
            "times": cost.times,
            "estimated": cost.estimated,
        }
        for cost in found
    ]


def _port(port: Port) -> dict[str, Any]:
    return {"name": port.name, "dtype": port.dtype, "shape": port.shape}


def _label_count(manifest: Manifest) -> int:
    return len(manifest.named.labels) if manifest.named else 0


def _designed(memory: DesignedMemory) -> dict[str, Any]:
    return {**memory.model_dump(), "peak": memory.peak.numbers}


def _detector(detection: Detection) -> dict[str, Any]:
    """Return what a detector is, without its labels and anchors."""
    fields = {"nms", "score_threshold", "iou_threshold"}
    heads = list(detection.outputs)
    return {"classes": detection.classes, "heads": heads, **detection.model_dump(include=fields)}
