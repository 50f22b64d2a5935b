"""Traces for Perfetto: every operation is there once, rows do not overlap, the ring is never overfull."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.execution.perfetto import trace_document
from pipeline.planning.joined_launches import joined
from pipeline.planning.plan import Plan
from pipeline.program.program import Program
from tests.pipeline.plans import durations, plans, swept


@given(plans(), st.data())
def test_steps_in_one_launch_are_one_bar(drawn: tuple[Program, Plan], data: st.DataObject) -> None:
    source, plan = drawn
    longer = joined(source, plan)
    events = swept(plan.stages, data.draw(durations(plan))).events
    bars = [
        [item for item in document["traceEvents"] if _is_kernel(item)]
        for each in (plan, longer)
        for document in [trace_document({"": (each, events)}, source)]
    ]
    assert len(bars[0]) - len(bars[1]) == len(plan.steps) - longer.launches
    first, last = ((row[0]["ts"], row[-1]["ts"] + row[-1]["dur"]) for row in bars)
    assert first == pytest.approx(last)
    merged = [item for item in bars[1] if " to " in item["name"]]
    assert [item["name"] for item in merged] == [
        f"kernel {run.start} to kernel {run.stop - 1}" for run in longer.runs
    ]


def _is_kernel(item: dict[str, Any]) -> bool:
    return item["ph"] == "X" and str(item["name"]).startswith("kernel ")


@given(st.data())
def test_a_sweep_becomes_rows_of_operations(data: st.DataObject) -> None:
    program, plan = data.draw(plans())
    times = data.draw(durations(plan))
    events = swept(plan.stages, times).events
    document = trace_document({"a sweep": (plan, events)}, program)
    assert json.loads(json.dumps(document)) == document
    shown = document["traceEvents"]
    slices = [item for item in shown if item["ph"] == "X"]
    assert len(slices) >= sum(len(stage) - stage.ahead for stage in plan.stages)
    rows: dict[int, list[tuple[float, float]]] = {}
    for item in slices:
        rows.setdefault(item["tid"], []).append((item["ts"], item["ts"] + item["dur"]))
    for row in rows.values():
        assert all(one[1] <= other[0] + 1e-3 for one, other in pairwise(sorted(row)))
    named = {item["tid"] for item in shown if item["name"] == "thread_name"}
    assert named.issuperset(rows)
    fill = [item["args"]["bytes"] for item in shown if item["ph"] == "C"]
    assert all(0 <= n_bytes <= plan.ring_bytes for n_bytes in fill)
