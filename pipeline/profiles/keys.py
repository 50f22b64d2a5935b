"""What tells the kernels, the plans and the orders of operations of a profile apart."""

from dataclasses import asdict
from typing import Any

from models.packs.checksum import checksum
from models.packs.records.pieces import Piece
from pipeline.planning.found_plans import PLANNER_VERSION, canonical
from pipeline.planning.plan import Plan
from pipeline.program.steps import Phase


def piece_key(piece: Piece) -> str:
    """Return what tells the kernels of a pack apart: graph, first span and count, where it writes."""
    target = f"{piece.outputs[0].index}+{piece.outputs[0].offset}" if piece.outputs else ""
    weights = "" if piece.span is None else f"{piece.span}*{piece.n_spans}"
    return f"{piece.graph}:{weights}:{target}"


def plan_key(plan: Plan) -> str:
    """Return what tells plans of a pack apart: architecture, launches, reads and what each waits for."""
    parts = {
        "planner": PLANNER_VERSION,
        "ring_bytes": plan.ring_bytes,
        "resident": plan.resident,
        "groups": [_known(asdict(group)) for group in plan.groups],
        "depth": plan.choice.depth,
        "regions": [asdict(region) for region in plan.choice.regions],
        "steps": [
            step.number if isinstance(step, Phase) else piece_key(step) for step in plan.steps
        ],
        "runs": [(run.start, run.stop) for run in plan.runs],
        "stages": [asdict(stage) for stage in plan.stages],
    }
    return f"{plan.architecture.name}-{checksum(canonical(parts).encode())}"


def _known(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def order_of(plan: Plan) -> str:
    """Return by which name of ``overlaps`` operations of ``plan`` meet each other.

    In a ring of one chunk reads and kernels take turns, "2s"; in a larger one they overlap, "auto".
    """
    name = plan.architecture.name
    roomy = plan.ring_bytes >= 2 * plan.largest_chunk_bytes
    return "auto" if name == "2s-md" or (name == "2s" and roomy) else name.removesuffix("-md")
