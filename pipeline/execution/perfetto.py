"""Traces in the format that Perfetto and chrome://tracing open: a row per stage, and the ring's fill.

A sweep, real or predicted, is a process of the trace; its rows are reads (as many as are in flight),
copies, kernels, and the stalls of the kernel stage.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from models.packs.records.pieces import Layer
from pipeline.planning.plan import Plan
from pipeline.program.program import MadeAt, Program, made_at
from pipeline.program.steps import Phase, Step
from pipeline.schedule.trace import TraceEvent
from pipeline.timing.durations import STALL_SECONDS, ServiceTime, launched, services

Event = dict[str, Any]


def trace_document(
    sweeps: Mapping[str, tuple[Plan, Iterable[TraceEvent]]], program: Program
) -> dict[str, Any]:
    """Return the document of ``sweeps`` of ``program`` by title; kernels have their layers' names."""
    layers, events = program.layers_by_place(), list[Event]()
    for process, (title, (plan, trace)) in enumerate(sweeps.items(), start=1):
        events.append(_named(process, 0, "process_name", title))
        names = [_kernel_name(step, index, layers) for index, step in enumerate(plan.steps)]
        events += _sweep(process, plan, list(trace), names)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _sweep(
    process: int, plan: Plan, trace: list[TraceEvent], kernels: Sequence[str]
) -> Iterator[Event]:
    rows = services(plan.stages, trace, plan.choice.depth)
    for number, (stage, row) in enumerate(zip(plan.stages, rows, strict=True)):
        names = kernels if stage.name == "kernel" else _transfer_names(plan, stage.name, len(row))
        # Reads overlap each other: as many rows as can be in flight.
        lanes = plan.choice.depth if number == 0 else 1
        for lane in range(lanes):
            label = f"{stage.name} {lane + 1}" if lanes > 1 else stage.name
            yield _named(process, _thread(number, lane), "thread_name", label)
        free = [0.0] * lanes
        runs = plan.runs if stage.name == "kernel" else ()
        for run, service in launched(row, runs):
            if service is not None:
                name = names[run.start]
                if len(run) > 1:
                    name = f"{name} to {names[run.stop - 1]}"
                lane = min(range(lanes), key=free.__getitem__)
                free[lane] = service.end
                yield _slice(process, _thread(number, lane), name, service)
    number = len(plan.stages)
    yield _named(process, _thread(number, 0), "thread_name", "stall")
    for service in _stalls(rows[-1]):
        yield _slice(process, _thread(number, 0), "waits for weights", service)
    for at, n_bytes in _fill(plan, trace):
        yield {
            "ph": "C",
            "name": "ring",
            "pid": process,
            "ts": at * 1e6,
            "args": {"bytes": n_bytes},
        }


def _stalls(kernels: Sequence[ServiceTime | None]) -> Iterator[ServiceTime]:
    """Yield the times in which the kernel stage waited."""
    end = 0.0
    for service in kernels:
        if service is not None:
            if service.start - end > STALL_SECONDS:
                yield ServiceTime(end, service.start)
            end = service.end


def _fill(plan: Plan, trace: list[TraceEvent]) -> Iterator[tuple[float, int]]:
    """Yield when the ring's fill changes, and to how many bytes.

    A place is taken from the release of what writes it to the completion of its last kernel.
    """
    writer = plan.stages[-2].name
    weights, count = plan.weights, len(plan.reads)
    pairs = zip(weights, plan.users, strict=True)
    freed = {users.stop - 1: buffer.n_bytes for buffer, users in pairs}
    filled = 0
    for event in trace:
        if (event.what, event.stage) == ("release", writer):
            filled += weights[event.index % count].n_bytes
        elif (event.what, event.stage) == ("complete", "kernel") and event.index in freed:
            filled -= freed[event.index]
        else:
            continue
        yield event.at, filled


def _transfer_names(plan: Plan, stage: str, count: int) -> list[str]:
    """Return what reads or copies are called; those for the next sweep say so."""
    weights = plan.weights
    return [
        f"{stage} {index % len(weights)}: {weights[index % len(weights)].n_bytes >> 10} KiB"
        + (", next sweep" if index >= len(weights) else "")
        for index in range(count)
    ]


def _kernel_name(step: Step, index: int, layers: Mapping[MadeAt, Layer]) -> str:
    """Return the layer of a kernel where that is known: pieces themselves have no names."""
    if isinstance(step, Phase):
        first = step.region.plan.region.first_piece
        return f"phase {step.number} of pieces {first} to {step.region.plan.region.end_piece - 1}"
    layer = layers.get(made_at(step))
    return f"kernel {index}" if layer is None else layer.name


def _slice(process: int, thread: int, name: str, service: ServiceTime) -> Event:
    return {
        "ph": "X",
        "name": name,
        "pid": process,
        "tid": thread,
        "ts": service.start * 1e6,
        "dur": service.seconds * 1e6,
    }


def _thread(stage: int, lane: int) -> int:
    return 100 * (stage + 1) + lane


def _named(process: int, thread: int, what: str, name: str) -> Event:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}
