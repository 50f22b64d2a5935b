"""Trainings one after the other: each goes on where it was stopped, and leaves a log and an ONNX file."""

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from benchmarks.training.module import SkeletonModule

Data_contra = TypeVar("Data_contra", contravariant=True)
Say = Callable[[str], None]


class Trainer(Protocol):
    """What is trained: all that is random in it is in `state`."""

    module: SkeletonModule

    def state(self) -> dict[str, Any]: ...
    def load(self, state: dict[str, Any]) -> None: ...
    def epoch(self) -> dict[str, float]: ...
    def test(self) -> dict[str, float]: ...


class TrainingRun(Protocol[Data_contra]):
    """One training, a dataclass; ``epochs``: how many."""

    @property
    def epochs(self) -> int: ...
    def trainer(self, data: Data_contra) -> Trainer: ...


def train(
    named: Iterable[tuple[str, TrainingRun[Data_contra]]], data: Data_contra, folder: Path, say: Say
) -> None:
    """Train what of ``named`` is not done yet; ``folder`` gets NAME.json, NAME.onnx, meanwhile NAME.pt."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, run in named:
        if not (folder / f"{name}.json").exists():
            _train(name, run, data, folder, say)


def _train(
    name: str, run: TrainingRun[Data_contra], data: Data_contra, folder: Path, say: Say
) -> None:
    saved = folder / f"{name}.pt"
    trainer = run.trainer(data)
    log: list[dict[str, float]] = []
    if saved.exists():
        state = torch.load(saved, weights_only=True)
        trainer.load(state["trainer"])
        log = state["log"]
    while len(log) < run.epochs:
        began = time.thread_time()
        row = trainer.epoch()
        log.append({**row, "cpu_seconds": round(time.thread_time() - began, 1)})
        _save(saved, {"trainer": trainer.state(), "log": log})
        say(f"{name}: epoch {len(log)} of {run.epochs}: {log[-1]}")
    result = trainer.test()
    trainer.module.export(folder / f"{name}.onnx")
    report = {"run": asdict(run), "torch": torch.__version__, "epochs": log, **result}  # type: ignore[call-overload]
    (folder / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n")
    saved.unlink()
    say(f"{name}: {result}")


def _save(path: Path, state: dict[str, Any]) -> None:
    unfinished = path.with_suffix(".new")
    torch.save(state, unfinished)
    unfinished.replace(path)
