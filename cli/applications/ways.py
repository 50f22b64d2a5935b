"""Ways to give an application memory, a row each: the papers', and ours."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from papers.applications.application import Application, CnnBuffer, naive
from papers.applications.cost import Chromosome, Evaluator
from papers.applications.ours.members import Together
from papers.applications.parts import PartitionParts
from papers.applications.placements import greedy_memory
from papers.applications.reuse import reuse
from papers.applications.schedule import Firing, Repeat, compressed, phases
from pipeline.planning.plan import PipelinePlan, Plan


def papers_rows(evaluator: Evaluator) -> list[dict[str, Any]]:
    """Return what needs no search: naive, Algorithm 1, greedy-by-size, and all layers by one row."""
    application = evaluator.application
    whole = evaluator.throughputs(evaluator.all_whole())
    by_row = evaluator.all_by(1)
    parts = [CnnBuffer(size, (held,)) for held, size in evaluator.sizes(by_row).items()]
    pisarchyk = {"buffers": None, **_speed(application, _in_sequence(evaluator))}
    return [
        {"way": "naive", **_memory(application, naive(application)), **_speed(application, whole)},
        {"way": "reuse", **_memory(application, reuse(application)), **_speed(application, whole)},
        {"way": "greedy-by-size", "memory_bytes": greedy_memory(application), **pisarchyk},
        {
            "way": "parts",
            **_memory(application, parts),
            **_speed(application, evaluator.throughputs(by_row)),
        },
    ]


def _in_sequence(evaluator: Evaluator) -> tuple[float, ...]:
    """Return throughputs without pipelines, whose partitions greedy-by-size would let share buffers."""
    return evaluator.sequential_throughputs(evaluator.all_whole())


def chromosome_row(evaluator: Evaluator, genes: Chromosome, way: str) -> dict[str, Any]:
    """Return what a chromosome comes to: buffers (Table 9), phases, schedules (Fig. 3)."""
    application = evaluator.application
    return {
        "way": way,
        **_memory(application, evaluator.buffers(genes)),
        **_speed(application, evaluator.throughputs(genes)),
        "chromosome": list(genes),
        "phases": _phases(evaluator, genes),
        "schedules": _schedules(evaluator, genes),
    }


def ours_row(application: Application, found: Together, way: str) -> dict[str, Any]:
    """Return what our plans come to."""
    return {
        "way": way,
        "memory_bytes": found.memory_bytes,
        "total_bytes": found.total_bytes,
        "weight_bytes": found.bytes_of(("staging", "ring", "resident")),
        "arena_bytes": found.bytes_of(("arena",)),
        "scratch_bytes": found.bytes_of(("scratch",)),
        "read_bytes": sum(plan.read_bytes for plan in found.plans),
        "delay_ms": 1e3 * found.seconds,
        "turns": [[application.cnns[model].name for model in models] for models in found.turns],
        "plans": {
            cnn.name: _plan(plan) for cnn, plan in zip(application.cnns, found.plans, strict=True)
        },
    }


def _plan(plan: Plan) -> dict[str, Any]:
    document: dict[str, Any] = {
        "arena_bytes": plan.arena_bytes,
        "weight_bytes": plan.weight_bytes,
        "architecture": plan.architecture.name,
        "regions": [asdict(region) for region in plan.choice.regions],
    }
    if isinstance(plan, PipelinePlan):
        document["cuts"] = list(plan.cuts)
        document["edge_bytes"] = plan.edge_bytes
        document["partitions"] = [_plan(each) for each in plan.partitions]
    return document


def _memory(application: Application, buffers: Sequence[CnnBuffer]) -> dict[str, Any]:
    return {
        "memory_bytes": application.memory(buffers),
        "parameter_bytes": application.parameter_memory,
        "buffer_bytes": application.buffer_memory(buffers),
        "buffer_elements": sum(buffer.size for buffer in buffers),
        "buffers": [
            {"size": buffer.size, "edges": [application.label(held) for held in buffer.edges]}
            for buffer in buffers
        ],
    }


def _speed(application: Application, throughputs: Sequence[float]) -> dict[str, Any]:
    return {
        "delay_ms": sum(1e3 / each for each in throughputs),
        "throughputs": {
            cnn.name: each for cnn, each in zip(application.cnns, throughputs, strict=True)
        },
    }


def _phases(evaluator: Evaluator, genes: Chromosome) -> dict[str, int]:
    return {
        f"{cnn.name}:{layer.name}": phases(layer, genes[evaluator.gene_range(number).start + at])
        for number, cnn in enumerate(evaluator.application.cnns)
        for at, layer in enumerate(cnn.layers)
    }


def _schedules(evaluator: Evaluator, genes: Chromosome) -> list[dict[str, Any]]:
    """Return the schedule of each partition: which layers fire in which order, how often."""
    application = evaluator.application
    found = []
    for partition in application.partitions:
        cnn = application.cnns[partition.cnn]
        own = genes[evaluator.gene_range(partition.cnn).start :][: len(cnn.layers)]
        parts = PartitionParts(cnn, partition.layers)
        steps: list[Repeat] = []
        for run in parts.runs([own[layer] for layer in partition.layers]):
            layers = partition.layers[run.start : run.end]
            order = list(Firing(cnn, layers, own).order()) if run.by_parts else list(layers)
            steps += compressed(order)
        found.append(
            {
                "model": cnn.name,
                "steps": [
                    {
                        "layers": [cnn.layers[layer].name for layer in step.layers],
                        "times": step.times,
                    }
                    for step in steps
                ],
            }
        )
    return found
