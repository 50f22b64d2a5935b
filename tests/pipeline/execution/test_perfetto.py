"""Traces for Perfetto: every operation is there once, rows do not overlap, the ring is never overfull."""

import json
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pipeline.execution.perfetto import trace_document
from pipeline.timing.simulator import simulate
from tests.pipeline.plans import durations, plans


@given(st.data())
def test_a_sweep_becomes_rows_of_operations(data: st.DataObject) -> None:
    _, plan = data.draw(plans())
    times = data.draw(durations(plan))
    events = simulate(plan.stages, times).events
    document = trace_document({"a sweep": (plan, events)})
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
