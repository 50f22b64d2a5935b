"""What users want to know of a pack, and what it scored on data sets."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from models.detection.recipe import Detection
from models.packs.manifest import Manifest
from models.packs.pack import Pack, added_file_bytes
from models.packs.records.ports import DesignedMemory, Port
from models.records import plain
from pipeline.budget.request_needs import Need, smallest_budgets
from pipeline.devices.base import Device
from pipeline.fitting.fit import fit
from pipeline.fitting.trade_off import costs_of_least
from pipeline.fitting.wanted import LEAST
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Plan
from pipeline.planning.shapes import together
from pipeline.profiles.found_plans_file import plans_of
from pipeline.profiles.profile_file import find_profile
from pipeline.program.choice import choose_pieces, largest_unit_bytes, shared_bytes
from pipeline.program.prepare import prepare
from pipeline.program.program import Program
from pipeline.program.sessions import session_bytes
from pipeline.program.steps import scratch_bytes
from pipeline.schedule.architectures import ARCHITECTURES
from server.errors import few, shown
from server.memory.process_memory import process_bytes

# A part of the smallest budget gets a line of its own if it is at least a quarter.
_LARGE = 4


def summary_of(pack: Pack, cpu: Device, *, with_costs: bool = True) -> dict[str, Any]:
    """Return what users want to know of a pack: sizes in bytes, counts, ports.

    What kernels take is that of ``cpu``, as ``plan`` and ``serve`` have it; of a GPU's pack it is as
    compiled, since only its device could say more. ``with_costs``: with estimates of the delays in it.
    """
    manifest = pack.manifest
    program = Program.as_compiled(pack) if manifest.target.capability else prepare(pack, cpu)
    known = plans_of(pack)
    programs = program.by_shape()
    leasts = [fit(shape, ARCHITECTURES["auto"], LEAST, None, known).plan for shape in programs]
    least = together(programs, leasts) if pack.others else leasts[0]
    program = programs[0]
    known.save()
    needs = [Need.of(manifest)]
    budgets = smallest_budgets(least.total_bytes, needs)
    return {
        "model": pack.name,
        "version": pack.version,
        "folder": str(pack.folder),
        "target": plain(manifest.target),
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
        "costs": _costs(program, least, cpu, needs)
        if with_costs and not manifest.target.capability
        else [],
        "arena_bytes": make_plan(program, ARCHITECTURES["2s"]).arena_bytes,
        "scratch_bytes": scratch_bytes(program.pieces),
        "unrolled": _unrolled(program, least),
        "shapes": _shapes(pack, programs, leasts) if pack.others else [],
        "session_bytes": session_bytes(program, program.pieces),
        "inputs": [
            {**_port(port), "optional": port.default is not None} for port in manifest.inputs
        ],
        "outputs": [_port(port) for port in manifest.outputs],
        "preprocess": manifest.preprocess and plain(manifest.preprocess),
        "labels": _label_count(manifest),
        "detection": manifest.detection and _detector(manifest.detection),
        "segmentation": manifest.segmentation
        and plain(manifest.segmentation, leave_out={"labels"}),
        "depth": manifest.depth and plain(manifest.depth),
        "text": manifest.text and plain(manifest.text),
        "sound": manifest.sound and plain(manifest.sound),
        "embedding": manifest.embedding and plain(manifest.embedding),
        "origins": dict(manifest.origins),
        "source_sizes": manifest.source_sizes and plain(manifest.source_sizes),
        "designed": manifest.designed and _designed(manifest.designed),
        "resident_pieces": [asdict(piece) for piece in manifest.resident_pieces],
        "tables": [
            table.n_bytes
            for piece in manifest.pieces
            if piece.page_checksums is not None
            for table in piece.inputs
            if table.kind == "span"
        ],
        "bottlenecks": [
            {"channels": item.channels, "groups": list(item.sizes)} for item in manifest.bottlenecks
        ],
    }


def _shapes(
    pack: Pack, programs: Sequence[Program], leasts: Sequence[Plan]
) -> list[dict[str, Any]]:
    """Return what each shape of ``pack`` adds to the others: on the disk, in memory, at the start.

    ``memory_bytes``: in their smallest plans, ``leasts``.
    """
    all_bytes = together(programs, leasts).total_bytes
    rows = []
    for index, (shape, added) in enumerate(
        zip((pack, *pack.others), added_file_bytes(pack), strict=True)
    ):
        others = [i for i in range(len(programs)) if i != index]
        without = together([programs[i] for i in others], [leasts[i] for i in others])
        rows.append(
            {
                "shape": shape.manifest.shape_text,
                "inputs": [_port(port) for port in shape.manifest.inputs],
                "file": shape.path.name,
                "file_bytes": added,
                "memory_bytes": all_bytes - without.total_bytes,
                "sessions": len(shape.manifest.graphs),
            }
        )
    return rows


def _unrolled(program: Program, least: Plan) -> dict[str, Any] | None:
    """Return the layer that unrolls most in the ``least`` plan, where that is a large part of it."""
    layers = (
        {"layer": layer.name, "operator": layer.operator, "bytes": piece.unrolled.whole_bytes}
        for layer in program.layers
        for piece in program.pieces[layer.first_piece : layer.end_piece]
        if piece.unrolled is not None
        and piece.scratch_bytes == least.scratch_bytes
        and piece.unrolled.whole_bytes * _LARGE >= least.total_bytes
    )
    return next(layers, None)


def _costs(program: Program, least: Plan, cpu: Device, needs: list[Need]) -> list[dict[str, Any]]:
    """Return how many times as long as with all memory requests take: in the smallest budget, in more."""
    profile = find_profile(program.pack, cpu, logging.DEBUG)
    return [
        {
            "budget_bytes": smallest_budgets(cost.total_bytes, needs).full_bytes,
            "times": cost.times,
            "estimated": cost.estimated,
        }
        for cost in costs_of_least(program, least, profile=profile)
    ]


def _port(port: Port) -> dict[str, Any]:
    return {"name": port.name, "dtype": port.dtype, "shape": port.shape}


def _label_count(manifest: Manifest) -> int:
    return len(manifest.named.labels) if manifest.named else 0


def _designed(memory: DesignedMemory) -> dict[str, Any]:
    return {**plain(memory), "peak": memory.peak.numbers}


def _detector(detection: Detection) -> dict[str, Any]:
    """Return the fields of a detector without its labels and anchors."""
    fields = {
        name: getattr(detection, name) for name in ("nms", "score_threshold", "iou_threshold")
    }
    return {"classes": detection.classes, "heads": list(detection.outputs), **fields}


# What packs scored on data sets, in words and tables.

Result = Mapping[str, Any]
Table = tuple[str, tuple[str, ...], list[Sequence[str]]]

# A whole matrix of a thousand classes is too large to read.
_MIX_UPS = 10


def _percent(part: float) -> str:
    return f"{100 * part:.2f} %"


def evaluated(result: Result) -> str:
    """Return a result in one line."""
    parts = [f"{name} {value}" for name, value in _figures(result)]
    agreement = result.get("agreement")
    if agreement:
        parts.append(f"agreement with {result.get('against')} {_agreed(agreement)}")
    if result.get("not_numbers"):
        parts.append(_no_numbers(result))
    return ", ".join([*parts, f"{result['samples']} samples"])


def _no_numbers(result: Result) -> str:
    return f"{len(result['not_numbers']):,} answers with NaN"


def facts(result: Result) -> Iterator[tuple[str, str]]:
    """Yield a result line by line."""
    yield "model", str(result["model"])
    yield "data set", ", ".join(dict.fromkeys((result["dataset"], result["data"])))
    broken = f", {len(result['broken'])} broken ones passed over" if result["broken"] else ""
    yield "samples", f"{result['samples']:,}{broken}"
    if result["not_numbers"]:
        yield "no numbers", f"{_no_numbers(result)}: {few(result['not_numbers'])}"
    yield from _figures(result)
    if result.get("left_out"):
        yield "left out", _left_out(result["left_out"])
    if result.get("agreement"):
        yield "agreement", f"{_agreed(result['agreement'])} with {result['against']}"
    yield "sweep", f"{result['sweep_ms']:.2f} ms in the middle, all weights in memory"


def _left_out(objects: Mapping[str, int]) -> str:
    named = few([f"{shown(name)} ({count:,})" for name, count in objects.items()])
    return f"{sum(objects.values()):,} objects of classes that the model does not have: {named}"


def _figures(result: Result) -> Iterator[tuple[str, str]]:
    for key, name in (("top1", "top-1"), ("top5", "top-5")):
        if isinstance(result.get(key), int | float):
            yield name, _percent(result[key])
    if isinstance(result.get("map50"), int | float):
        yield "mAP@0.5", f"{_percent(result['map50'])}{_over(result)}"


def _over(result: Result) -> str:
    """Return over which classes the mean is, where the data set has others."""
    left_out = len(result.get("left_out", ()))
    return (
        f" over {len(result['ap50'])} of {len(result['ap50']) + left_out} classes"
        if left_out
        else ""
    )


def _agreed(agreement: Mapping[str, Any]) -> str:
    if "map50" in agreement:
        return f"mAP@0.5 {_percent(agreement['map50'])}"
    return f"top-1 {_percent(agreement['top1'])} of {agreement['compared']:,}"


def tables(result: Result) -> Iterator[Table]:
    """Yield the precision of each class, and the classes that are taken for others most."""
    if "ap50" in result:
        rows = [(name, _percent(value)) for name, value in result["ap50"].items()]
        yield "Average precision at 0.5", ("class", "AP"), list(rows)
    mixed = [cell for cell in result.get("confusion", ()) if cell["truth"] != cell["answer"]]
    mixed = sorted(mixed, key=lambda cell: -cell["count"])[:_MIX_UPS]
    if mixed:
        cells = [(cell["truth"], cell["answer"], f"{cell['count']:,}") for cell in mixed]
        yield "Most often mixed up", ("is", "answered", "times"), list(cells)
