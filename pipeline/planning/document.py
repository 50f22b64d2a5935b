"""A plan as JSON, and its checksum."""

import json
from collections.abc import Sequence
from typing import Any

from models.packs.manifest import checksum
from pipeline.planning.calls import Argument, PlanCall, UnsizedValue, launches_of
from pipeline.planning.plan import Plan
from pipeline.program.program import made_at
from pipeline.program.steps import Phase, Step


def plan_document(plan: Plan) -> dict[str, Any]:
    """Return ``plan`` as JSON: buffers, reads, copies, each call once, launches, and what waits for what.

    Launches are groups of indices of calls. Waits: of each operation of each queue, how many operations of
    every queue are complete before it starts.
    """
    calls: list[Any] = []
    groups: dict[int, list[int]] = {}
    launches: list[list[list[int]]] = []
    for launch in launches_of(plan):
        for group in launch.groups:
            if group.id not in groups:
                groups[group.id] = list(range(len(calls), len(calls) + len(group.calls)))
                calls += map(_call, group.calls)
        launches.append([groups[group.id] for group in launch.groups])
    return {
        **_layout(plan),
        "calls": calls,
        "launches": launches,
    }


def plan_checksum(plan: Plan) -> str:
    """Return what distinguishes plans of a pack that do something else, as 16 hexadecimal digits.

    It is of steps in place of their calls, which follow from them and from buffers: searches ask often.
    """
    text = json.dumps(
        {
            **_layout(plan),
            "values": [plan.values.buffers.hex(), plan.values.offsets.hex()],
            "spans": [plan.spans.buffers.hex(), plan.spans.offsets.hex()],
            "steps": list(map(_step, plan.steps)),
        },
        sort_keys=True,
        separators=(",", ":"),
    )
    return checksum(text.encode())


def _layout(plan: Plan) -> dict[str, Any]:
    """Return all of a plan but what its steps are."""
    return {
        "architecture": plan.architecture.name,
        "lanes": plan.batch_size,
        "depth": plan.choice.depth,
        "memory": plan.memory,
        "buffers": plan.buffers,
        "reads": plan.reads,
        "copies": plan.copies,
        "runs": [[run.start, run.stop] for run in plan.runs],
        "waits": {stage.name: stage.after for stage in plan.stages},
        "ahead": plan.stages[0].ahead,
    }


def _step(step: Step) -> list[Any]:
    """Return what distinguishes a step of a pack."""
    if isinstance(step, Phase):
        region = step.region.plan.region
        return [region.first_piece, region.end_piece, repr(region.cut), step.number]
    return [step.graph, step.span, step.n_spans, made_at(step)]


def _call(call: PlanCall) -> list[Any]:
    return [repr(call.kernel), _arguments(call.reads), _arguments(call.writes)]


def _arguments(arguments: Sequence[Argument]) -> list[Any]:
    return [
        ["loose", argument.value]
        if isinstance(argument, UnsizedValue)
        else [*argument[:4], argument.box and [[axis.start, axis.stop] for axis in argument.box]]
        for argument in arguments
    ]
