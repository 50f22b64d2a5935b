"""The parts of ``layerstream app``: models of its file, ways to give them memory, and printing."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cli.arguments import profiled
from cli.printing.output import print_table, say
from cli.printing.tables import number
from models.packs.pack import open_pack
from papers.applications.application import Application, CnnBuffer, naive
from papers.applications.application_files import read_application, runs_at_once
from papers.applications.cost import Chromosome, Evaluator
from papers.applications.from_pack import (
    AllTimes,
    Cut,
    PackTimes,
    cnn_with_parameters,
    cuts_of,
    layers_at,
)
from papers.applications.ours.members import ApplicationMember, Together
from papers.applications.parts import PartitionParts
from papers.applications.placements import greedy_memory
from papers.applications.reuse import reuse
from papers.applications.schedule import Firing, Repeat, compressed, phases
from papers.cnn.layers import Cnn
from papers.cnn.of_pack import PackCnn
from pipeline.devices.base import Device
from pipeline.fitting.partitioned import balanced_cuts
from pipeline.planning.plan import AnyPlan, PartitionedPlan
from pipeline.profiles.profile import Profile, ProfileError
from pipeline.program.prepare import prepare
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES

# The application of a file with its packs, as this machine runs them.


@dataclass(frozen=True)
class OpenedPack:
    """A model that is a pack, its profile, and why it has none."""

    program: Program
    profile: Profile | None
    model: PackCnn
    hint: str


@dataclass(frozen=True)
class OpenedApplication:
    """``packs`` by model; None: its layers are written down. ``cuts``: of partitions that run at once."""

    application: Application
    packs: tuple[OpenedPack | None, ...]
    cuts: tuple[tuple[Cut, ...], ...]

    @property
    def hints(self) -> list[str]:
        """Hints about profiles that are missing, and about cuts in other places than the file asks for."""
        said = [item.hint for item in self.packs if item and item.hint]
        for cnn, cuts in zip(self.application.cnns, self.cuts, strict=True):
            said += [
                f"{cnn.name}: cut before {cut.layer}, the nearest place to {cut.asked} where the pack "
                "can be cut"
                for cut in cuts
                if cut.moved
            ]
        return said

    def evaluator(self) -> Evaluator:
        """Return what evaluates chromosomes, with the times of profiles."""
        times = [
            PackTimes(item.program, item.model, item.profile) if item and item.profile else None
            for item in self.packs
        ]
        return Evaluator(self.application, AllTimes(self.application, times))

    def members(self, device: Device) -> list[ApplicationMember] | None:
        """Return its models as our planner knows them; None: some are no packs."""
        auto = device.adapt(ARCHITECTURES["auto"])
        members = [
            ApplicationMember(item.program, item.profile, auto, tuple(cut.piece for cut in cuts))
            for item, cuts in zip(self.packs, self.cuts, strict=True)
            if item is not None
        ]
        return members if len(members) == len(self.packs) else None


class _Packs:
    """Opens the packs of an application, by model."""

    def __init__(self, device: Device, at_once: bool) -> None:
        self._device = device
        self._at_once = at_once
        self.opened: dict[str, OpenedPack] = {}

    def cnn(self, pack: Path, name: str) -> Cnn:
        compiled = open_pack(pack, self._device.target)
        profile: Profile | None = None
        hint = ""
        try:
            program, profile = profiled(compiled, self._device)
        except ProfileError as exc:
            program, hint = prepare(compiled, self._device), str(exc)
            if self._at_once:
                hint += " with --threads 1: partitions at once compute on a core each"
        model = cnn_with_parameters(compiled, name)
        self.opened[name] = OpenedPack(program, profile, model, hint)
        return model.cnn

    def starts(self, name: str, workers: int) -> Sequence[int]:
        item = self.opened[name]
        return layers_at(item.model, balanced_cuts(item.program, workers, item.profile))


def open_application(
    path: Path, open_device: Callable[[int | None], Device], threads: int | None = None
) -> tuple[OpenedApplication, Device]:
    """Read the application of ``path`` and open its packs, on the device of so many threads.

    With one where partitions run at once: each has a core.

    Raises:
        ModelError: the file or a pack is not right. PlanError: a pack cannot be cut for its workers.
    """
    at_once = runs_at_once(path)
    device = open_device(1 if at_once else threads)
    packs = _Packs(device, at_once)
    application = read_application(path, packs).application
    packs_by_cnn = tuple(packs.opened.get(cnn.name) for cnn in application.cnns)
    cuts = tuple(
        cuts_of(application, number, item.program, item.model) if item else ()
        for number, item in enumerate(packs_by_cnn)
    )
    return OpenedApplication(application, packs_by_cnn, cuts), device


# Ways to give an application memory, a row each: the papers', and ours.


def papers_rows(evaluator: Evaluator) -> list[dict[str, Any]]:
    """Return the ways without a search: naive, Algorithm 1, greedy-by-size, and all layers by one row."""
    application = evaluator.application
    whole = evaluator.throughputs(evaluator.all_whole())
    by_row = evaluator.all_by(1)
    parts = [CnnBuffer(size, (edge,)) for edge, size in evaluator.sizes(by_row).items()]
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
    """Return the row of a chromosome: buffers (Table 9), phases, schedules (Fig. 3)."""
    application = evaluator.application
    return {
        "way": way,
        **_memory(application, evaluator.buffers(genes)),
        **_speed(application, evaluator.throughputs(genes)),
        "chromosome": list(genes),
        "phases": _phases(evaluator, genes),
        "schedules": _schedules(evaluator, genes),
    }


def ours_row(application: Application, together: Together, way: str) -> dict[str, Any]:
    """Return the row of our plans."""
    return {
        "way": way,
        "memory_bytes": together.memory_bytes,
        "total_bytes": together.total_bytes,
        "weight_bytes": together.bytes_of(("staging", "ring", "resident")),
        "arena_bytes": together.bytes_of(("arena",)),
        "scratch_bytes": together.bytes_of(("scratch",)),
        "read_bytes": sum(plan.read_bytes for plan in together.plans),
        "delay_ms": 1e3 * together.seconds,
        "turns": [[application.cnns[model].name for model in models] for models in together.turns],
        "plans": {
            cnn.name: _plan(plan)
            for cnn, plan in zip(application.cnns, together.plans, strict=True)
        },
    }


def _plan(plan: AnyPlan) -> dict[str, Any]:
    document: dict[str, Any] = {
        "arena_bytes": plan.arena_bytes,
        "weight_bytes": plan.weight_bytes,
        "architecture": plan.architecture.name,
        "regions": [asdict(region) for region in plan.regions],
    }
    if isinstance(plan, PartitionedPlan):
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
            {"size": buffer.size, "edges": [application.label(edge) for edge in buffer.edges]}
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
    schedules = []
    for partition in application.partitions:
        cnn = application.cnns[partition.cnn]
        own = genes[evaluator.gene_range(partition.cnn).start :][: len(cnn.layers)]
        parts = PartitionParts(cnn, partition.layers)
        steps: list[Repeat] = []
        for run in parts.runs([own[layer] for layer in partition.layers]):
            layers = partition.layers[run.start : run.end]
            order = list(Firing(cnn, layers, own).order()) if run.by_parts else list(layers)
            steps += compressed(order)
        schedules.append(
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
    return schedules


# What ``layerstream app`` prints: one table of all ways, buffers, schedules, the frontier.

_MB = 1e6
_SMALL = 1e5
#: Names of the ways in the printed table.
WAYS = {
    "naive": "naive",
    "reuse": "reuse (Algorithm 1)",
    "greedy-by-size": "greedy-by-size",
    "parts": "parts, all by one row",
    "algorithm-2": "Algorithm 2",
    "chromosome": "chromosome",
    "ours": "ours",
    "ours-streaming": "ours, streaming",
}


def print_application(document: Mapping[str, Any]) -> None:
    """Print the table of all ways, and the schedule of the search's solution where it is short."""
    rows = document["ways"]
    unit = _unit(rows)
    print_table(
        f"{document['application']}: memory",
        ("way", f"memory {unit[1]}", "delay ms", "of it weights", "activations"),
        (
            (
                WAYS[row["way"]],
                _shown(row["memory_bytes"], unit),
                number(row["delay_ms"]),
                _shown(row.get("weight_bytes", row.get("parameter_bytes")), unit),
                _shown(row.get("arena_bytes", row.get("buffer_bytes")), unit),
            )
            for row in rows
        ),
    )
    for row in rows:
        if row["way"] in ("reuse", "chromosome") and unit[1] == "bytes":
            print_buffers(row)
    for row in rows:
        if row["way"] == "chromosome":
            _print_schedules(row)
    for hint in document["hints"]:
        say(hint)


def print_buffers(row: Mapping[str, Any]) -> None:
    """Print which edges each buffer holds."""
    print_table(
        f"{WAYS[row['way']]}: buffers of {row['buffer_elements']:,} elements",
        ("buffer", "size", "edges"),
        (
            (f"B{place}", f"{buffer['size']:,}", ", ".join(buffer["edges"]))
            for place, buffer in enumerate(row["buffers"], 1)
        ),
    )


def _print_schedules(row: Mapping[str, Any]) -> None:
    for place, schedule in enumerate(row["schedules"], 1):
        steps = ", ".join(
            f"[{' '.join(step['layers'])}]" + (f" x {step['times']}" if step["times"] > 1 else "")
            for step in schedule["steps"]
        )
        say(f"P{place} ({schedule['model']}): {steps}")


def print_frontier(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print memory against delay: of each way the points that no other point of it beats in both."""
    unit = _unit(rows)
    rows = _unbeaten(rows)
    print_table(
        title,
        ("way", f"memory {unit[1]}", "delay ms"),
        (
            (WAYS[row["way"]], _shown(row["memory_bytes"], unit), number(row["delay_ms"]))
            for row in rows
        ),
    )


def _unbeaten(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the rows that no smaller one of the same way beats."""
    kept: dict[str, list[Mapping[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: (row["memory_bytes"], row["delay_ms"])):
        own = kept.setdefault(row["way"], [])
        if not own or row["delay_ms"] < own[-1]["delay_ms"]:
            own.append(row)
    return [row for own in kept.values() for row in own]


def _unit(rows: Sequence[Mapping[str, Any]]) -> tuple[float, str]:
    return (_MB, "MB") if max(row["memory_bytes"] for row in rows) >= _SMALL else (1.0, "bytes")


def _shown(value: float | None, unit: tuple[float, str]) -> str:
    if value is None:
        return "-"
    return f"{value / unit[0]:.2f}" if unit[0] > 1 else f"{value:,}"
