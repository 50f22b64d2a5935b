"""Measure the CUDA device and write gpu.json and gpu.md. Run as ``python -m benchmarks.gpu``.

Without a GPU it ends with one line. Whatever cannot be measured (no PyTorch, a network that fails) is noted
and the rest goes on; what was measured is written after every part.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.gpu.kernels import measure_kernels, shapes_of, summarise
from benchmarks.gpu.networks import (
    build,
    memory_disk,
    on_rows,
    pipelines,
    preloaded,
    sweeping_growth,
)
from benchmarks.gpu.report import markdown
from loader.readers.disk import Disk
from models.packs.pack import Pack
from models.runtime.sessions import claim_process
from pipeline.devices.base import DeviceError, DeviceLostError
from pipeline.devices.cuda.device import CudaDevice
from pipeline.devices.cuda.driver import version as cuda_version
from pipeline.devices.cuda.trials import probe_kinds
from pipeline.devices.find import open_device
from pipeline.execution.perfetto import trace_document
from pipeline.measuring.profiling import profile_pack
from pipeline.profiles.profile import Profile
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES

_NETWORKS = {"yolov4": 608, "resnet50": 224}
_SMALL = ("squeezenet1.1", 224)
_ON_ROWS = {"mobilenetv2": 224, "resnet50": 224, "yolov4": 608}
# Reads that take so much of the kernels' time: a board whose disk keeps up with it.
_BALANCE = 0.8


class _Run:
    """One run: what it has measured so far, written after every part."""

    def __init__(self, device: CudaDevice, options: argparse.Namespace, folder: Path) -> None:
        self.device, self.options, self.folder = device, options, folder
        self.document: dict[str, Any] = {
            "command": "python -m benchmarks.gpu " + " ".join(sys.argv[1:]),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),  # noqa: TID251  a date
            "machine": {
                "gpu": device.gpu,
                "threads": device.threads,
                "runtime": cuda_version(device.properties.runtime_version),
                "cupy": _version("cupy-cuda13x", "cupy-cuda12x", "cupy-cuda11x"),
                "torch": _version("torch"),
            },
            "kernels": {},
            "preloaded": {},
            "pipelines": [],
            "rows": {},
            "notes": [],
            "seconds": {},
        }
        self.packs: dict[str, tuple[Path, Pack]] = {}
        #: By the pack and the speed of the disk.
        self.profiles: dict[tuple[str, float | None], Profile] = {}

    def part(self, name: str, measure: Callable[[], None]) -> None:
        """Measure one part; what fails is noted, unless nothing can work after it."""
        began = time.perf_counter()
        print(f"{name} ...", file=sys.stderr, flush=True)
        try:
            measure()
        except DeviceLostError:
            self.document["notes"].append(f"{name} and what follows: the device was lost")
            self.write()
            raise
        except Exception as exc:  # noqa: BLE001  one part that fails must not cost the others
            self.document["notes"].append(f"{name}: {type(exc).__name__}: {exc}")
        self.document["seconds"][name] = time.perf_counter() - began
        self.write()

    def write(self) -> None:
        output: Path = self.options.output
        output.mkdir(parents=True, exist_ok=True)
        (output / "gpu.json").write_text(json.dumps(self.document, indent=1) + "\n", "utf-8")
        (output / "gpu.md").write_text(markdown(self.document), "utf-8")

    def pack(self, name: str, side: int) -> tuple[Path, Pack]:
        if name not in self.packs:
            self.packs[name] = build(name, side, self.folder, self.device)
        return self.packs[name]

    def profile(self, pack: Pack, disk: Disk) -> Profile:
        key = (pack.name, disk.bytes_per_second)
        if key not in self.profiles:
            self.profiles[key] = profile_pack(pack, self.device, iterations=3, disk=disk)
        return self.profiles[key]

    def kinds(self) -> None:
        self.document["memory_kinds"] = {}
        weights = self.pack(*_SMALL)[1].weights_path
        self.document["memory_kinds"] = probe_kinds(self.device, weights)

    def tune(self, name: str) -> None:
        _, pack = self.pack(name, _NETWORKS[name])
        tuning = self.device.tunings(pack.graphs, pack.weights_path)[0]
        self.device.tune(replace(tuning, memory_kind=""))
        self.document.setdefault("algorithms", {})[name] = tuning.algorithms

    def kernels(self, name: str) -> None:
        _, pack = self.pack(name, _NETWORKS[name])
        rows = list(measure_kernels(self.device, shapes_of(pack, self.device)))
        self.document["kernels"][name] = {"rows": rows, "summary": summarise(rows)}

    def preloaded(self, name: str) -> None:
        source, pack = self.pack(name, _NETWORKS[name])
        runs = self.options.iterations
        self.document["preloaded"][name] = preloaded(source, pack, self.device, runs)

    def pipelines(self) -> None:
        _, pack = self.pack("yolov4", _NETWORKS["yolov4"])
        pre = next(iter(self.document["preloaded"].values()), {"ours": 20.0})["ours"] / 1e3
        speeds = {
            "of a fast SSD": self.options.disk_rate * 1e9,
            f"reads take {_BALANCE:.0%} of pre": pack.manifest.weight_bytes / (_BALANCE * pre),
        }
        for why, speed in speeds.items():
            disk = memory_disk(pack, speed)
            rows, sweeps = pipelines(
                *(pack, self.device, self.profile(pack, disk), list(ARCHITECTURES), disk),
                self.options.iterations,
            )
            self.document["pipelines"].append(
                {
                    "model": pack.name,
                    "bytes_per_second": speed,
                    "why": why,
                    "kind": self.device.kind,
                    "rows": rows,
                }
            )
            self.options.output.mkdir(parents=True, exist_ok=True)
            trace = json.dumps(trace_document(sweeps, Program.as_compiled(pack)))
            (self.options.output / "gpu-timeline.json").write_text(trace, "utf-8")

    def rows(self, name: str) -> None:
        side = _ON_ROWS[name]
        _, pack = self.pack(name, side)
        disk = memory_disk(pack, self.options.disk_rate * 1e9)
        profile = self.profile(pack, disk)
        self.document["rows"][name] = on_rows(
            pack, self.device, profile, disk, self.options.iterations
        )

    def growth(self) -> None:
        _, pack = self.pack(*_SMALL)
        self.document["growth"] = sweeping_growth(pack, self.device, self.options.inferences)


def _version(*packages: str) -> str:
    for package in packages:
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return ""


def main() -> int:
    """Measure and write; return the exit status."""
    claim_process()
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--output", type=Path, default=Path("build"))
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--inferences", type=int, default=10_000, help="when looking for growth")
    parser.add_argument("--disk-rate", type=float, default=3.0, help="GB/s of the paced reader")
    options = parser.parse_args()
    try:
        device = open_device(options.device)
    except DeviceError as exc:
        print(f"layerstream: {exc}: nothing was measured", file=sys.stderr)
        return 1
    assert isinstance(device, CudaDevice)
    with closing(device), tempfile.TemporaryDirectory(prefix="layerstream-gpu-") as folder:
        run = _Run(device, options, Path(folder))
        run.part("memory kinds", run.kinds)
        for name in _NETWORKS:
            run.part(f"algorithms of {name}", lambda name=name: run.tune(name))  # type: ignore[misc]
            run.part(f"kernels of {name}", lambda name=name: run.kernels(name))  # type: ignore[misc]
            run.part(f"{name} preloaded", lambda name=name: run.preloaded(name))  # type: ignore[misc]
        for name in _ON_ROWS:
            run.part(f"{name} on rows", lambda name=name: run.rows(name))  # type: ignore[misc]
        run.part("pipelines", run.pipelines)
        run.part("growth", run.growth)
    print(f"{options.output / 'gpu.md'}: written", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
