"""One network beside what users would run instead: every contender a process in a memory cgroup.

All take turns. Delays are those inside the processes. A page of a file that another process read first is
not charged to a group, so the model's own files leave the page cache before each one starts; libraries that
several use may be charged to the first.
"""

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from models.packs.pack import Pack
from pipeline.benchmark.contenders import Apart, Samples, model_of, take_turns
from pipeline.benchmark.ours import StreamedArchitecture, ours_command
from pipeline.benchmark.run import equal, relative_error, resolution, spread
from pipeline.energy import EnergyMeter, find_meter
from pipeline.execution.given import Arrays
from pipeline.measuring.sweeps import random_inputs
from pipeline.peers import ONNXRUNTIME, PEERS
from pipeline.peers.cgroup import MemoryGroup, memory_group
from pipeline.peers.peer import PeerError, PeerProcess, peer_command

#: Makes a group of this name until its context ends, or raises OSError.
MakeGroup = Callable[[str], AbstractContextManager[MemoryGroup]]


def group_or_note(
    stack: ExitStack, name: str, notes: list[str], make: MakeGroup = memory_group
) -> MemoryGroup | None:
    """Return a group until ``stack`` ends; None: none could be made, and ``notes`` say why."""
    try:
        return stack.enter_context(make(f"layerstream-bench-{name}"))
    except OSError as exc:
        notes.append(f"memory is not measured: {exc.strerror or exc}: a memory cgroup needs root")
        return None


def let_go(files: Sequence[Path]) -> None:
    """Take ``files`` out of the page cache, where the system lets them go."""
    for path in files:
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


# The comparison.

#: How ours run: all weights in memory, and what of them ``auto`` may have.
WAYS = (
    StreamedArchitecture("pre"),
    StreamedArchitecture("auto", 5),
    StreamedArchitecture("auto", 2),
)


@dataclass(frozen=True)
class Comparison:
    """What to measure: ``pack`` in each of ``ways``, and ``peers`` with its source (None: not found)."""

    pack: Pack
    source: Path | None
    threads: int
    ways: Sequence[StreamedArchitecture] = WAYS
    peers: Sequence[str] = PEERS
    runs: int = 20


def compare(
    wanted: Comparison,
    *,
    progress: Callable[[int], None] = lambda done: None,
    meter: EnergyMeter | None = None,
) -> dict[str, Any]:
    """Measure ``wanted``; return an entry of ``networks`` of ``bench peers --json``.

    A contender that cannot be measured is left out, and a line of ``notes`` says why.
    """
    notes: list[str] = []
    manifest = wanted.pack.manifest
    with ExitStack() as stack:
        players = list(_players(stack, wanted, random_inputs(manifest), notes))
        contenders = [player.contender for player in players]
        meter = meter or find_meter()
        samples = take_turns(contenders, wanted.runs, meter, progress) if players else []
        rows = _rows(samples, [player.group for player in players])
    return {
        "model": manifest.name,
        "resolution": resolution(manifest),
        "model_weight_bytes": manifest.weight_bytes,
        "rows": rows,
        "notes": list(dict.fromkeys(notes)),
    }


@dataclass(frozen=True)
class _Player:
    """A process that takes turns, and its group; None: none could be made."""

    contender: Apart
    group: MemoryGroup | None


def _players(
    stack: ExitStack, wanted: Comparison, inputs: Arrays, notes: list[str]
) -> Iterator[_Player]:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="layerstream-")))
    files = [wanted.pack.weights_path, *([wanted.source] if wanted.source else [])]
    for name, command in _commands(wanted, inputs, folder, notes):
        group = group_or_note(stack, name, notes)
        let_go(files)
        try:
            peer = PeerProcess(name, group.inside(command) if group else command, folder)
        except PeerError as exc:
            notes.append(f"{name} is left out: {exc}")
            continue
        stack.callback(peer.close)
        yield _Player(Apart(peer, wanted.pack.manifest), group)


def _commands(
    wanted: Comparison, inputs: Arrays, folder: Path, notes: list[str]
) -> Iterator[tuple[str, list[str]]]:
    """Yield each contender that is to be measured, and the command of its process."""
    for name in wanted.peers:
        model, note = model_of(wanted.pack, wanted.source, name)
        notes.extend([note] if note else [])
        if model is None:
            continue
        try:
            yield name, peer_command(name, model, inputs, wanted.threads, folder)
        except PeerError as exc:
            notes.append(f"{name} is left out: {exc}")
    for way in wanted.ways:
        yield way.label, ours_command(wanted.pack.folder, way, inputs, wanted.threads, folder)


def _rows(samples: Sequence[Samples], groups: Sequence[MemoryGroup | None]) -> list[dict[str, Any]]:
    by_name = {each.contender.name: each for each in samples}
    reference, pre = by_name.get(ONNXRUNTIME), by_name.get("pre")
    delays = {name: median(each.delays) for name, each in by_name.items()}
    best = best_of(delays)
    return [
        {
            "runtime": each.contender.name,
            "delay_ms": spread([seconds * 1e3 for seconds in each.delays]),
            "ratio_to_best_peer": best and delays[each.contender.name] / delays[best],
            "cgroup_peak_bytes": group and (group.peak_bytes or group.usage().total),
            "anonymous_bytes": group and group.usage().anonymous,
            "cpu_seconds": median(each.cpu),
            "max_relative_error": reference and relative_error(each.outputs, reference.outputs),
            "equal_to_pre": pre and equal(each.outputs, pre.outputs),
        }
        for each, group in zip(samples, groups, strict=True)
    ]


def best_of(delays: Mapping[str, float]) -> str | None:
    """Return the fastest peer among ``delays``, None where there is none."""
    return min((name for name in delays if name in PEERS), key=delays.__getitem__, default=None)
