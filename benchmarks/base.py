"""What a process takes before any model, anonymous and as pages of files, by library and folder of ours.

Each figure is of fresh processes whose bytecode was compiled first, as an installation has it; the kernel
says what they take (smaps_rollup). Three tables, in MiB, medians:

- modules: what importing one after the other adds, first what `layerstream.open` needs, then what a server
  needs in addition
- folders: of ours, what the modules of each add in an import of all; libraries that they import not counted
- jobs: `layerstream.open` of MobileNetV2 in 6 MiB, its plan known or not; a server with one tiny model
  after 1,000 requests

Run as ``python -m benchmarks.base [TABLE...] [--runs 3]``; docs/research/process.md has the result.
"""

import argparse
import compileall
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.load.messages import tensors_document
from benchmarks.servers import small_models
from benchmarks.servers.client import KeptClient
from benchmarks.servers.served import ours, running
from models import zoo
from models.compiler import compile_onnx
from models.processes import CODE, child_environment

_MIB = 1 << 20
_PACKAGES = ("models", "loader", "pipeline", "server", "layerstream", "cli")
_REQUESTS = 1000
#: Of bytecode: as usual, and as a server has it.
_LEVELS = (0, 2)
#: Anonymous memory and pages of files, in bytes.
Figures = tuple[float, float]

#: What is imported one after the other, by the name of the row.
_MODULES: Mapping[str, str] = {
    "Python": "sys",
    "NumPy": "numpy",
    "ONNX Runtime": "onnxruntime",
    "layerstream": "layerstream",
    "asyncio, uvloop, httptools": "asyncio, uvloop, httptools",
    "pydantic, its first model": "pydantic; pydantic.create_model('Model', x=int)",
    "FastAPI, Starlette": "fastapi",
    "uvicorn": "uvicorn",
    "Prometheus": "prometheus_client",
    "Pillow, with the first picture": "PIL.Image; PIL.Image.preinit()",
    "server": "server.serve",
    "Typer, the command line": "cli.serve",
}
_FOLDERS = "layerstream, server.serve, cli.serve"

_SAY = """
def say():
    lines = (line.split() for line in open("/proc/self/smaps_rollup"))
    kib = {line[0]: int(line[1]) for line in lines if line[-1] == "kB"}
    return kib["Anonymous:"], kib["Rss:"] - kib["Anonymous:"]
"""
#: Wraps the import of each module, and leaves out what those that it imports take.
_BY_MODULE = """
import importlib._bootstrap as bootstrap, json
taken, stack = {}, [[0, 0]]
load = bootstrap._load_unlocked
def counted(spec):
    before = say()
    stack.append([0, 0])
    try:
        return load(spec)
    finally:
        inner, after = stack.pop(), say()
        added = [after[i] - before[i] for i in (0, 1)]
        taken[spec.name] = [added[i] - inner[i] for i in (0, 1)]
        stack[-1][0] += added[0]
        stack[-1][1] += added[1]
bootstrap._load_unlocked = counted
"""
_OPEN = """
import sys, numpy, layerstream
model = layerstream.open(sys.argv[1], budget="6MiB")
port, = model.inputs
array = numpy.zeros(port.shape, port.dtype)
for _ in range(20):
    model(array)
"""


def compile_bytecode() -> None:
    """Compile our modules and all that is installed; those that are compiled stay as they are."""
    paths = sysconfig.get_paths()
    for level in _LEVELS:
        for folder in (*(CODE / name for name in _PACKAGES), Path(paths["purelib"])):
            compileall.compile_dir(folder, quiet=2, optimize=level)
        compileall.compile_dir(Path(paths["stdlib"]), maxlevels=2, quiet=2, optimize=level)


def _run(code: str, *arguments: str) -> Any:
    """Run ``code`` in a fresh interpreter; return the JSON that it prints."""
    environment = child_environment()
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-P", "-c", code, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, env=environment, check=True)
    return json.loads(done.stdout)


def _measured(code: str, runs: int, *arguments: str) -> Figures:
    """Return what processes take that have run ``code``: the median of so many."""
    code_and_figures = f"{_SAY}{code}\nimport json\nprint(json.dumps(say()))"
    return _median([_run(code_and_figures, *arguments) for _ in range(runs)])


def _median(kib: Sequence[Sequence[float]]) -> Figures:
    anonymous, files = (1024 * median(column) for column in zip(*kib, strict=True))
    return anonymous, files


def modules(runs: int) -> Iterator[tuple[str, Figures]]:
    """Yield what each row of modules adds to those before it."""
    code, before = "", (0.0, 0.0)
    for name, imported in _MODULES.items():
        code += f"import {imported}\n"
        after = _measured(code, runs)
        yield name, (after[0] - before[0], after[1] - before[1])
        before = after
    yield "all", before


def folders(runs: int) -> Iterator[tuple[str, Figures]]:
    """Yield what the modules of each folder of ours add by themselves, the largest first."""
    code = f"{_SAY}{_BY_MODULE}\nimport {_FOLDERS}\nprint(json.dumps(taken))"
    of_runs_by_module = [_run(code) for _ in range(runs)]
    sums: dict[str, list[list[float]]] = {}
    for run, by_module in enumerate(of_runs_by_module):
        for module, figures in by_module.items():
            names = module.split(".")
            if names[0] in _PACKAGES:
                folder = "/".join(names[: 2 if _is_folder(names[:2]) else 1])
                of_runs = sums.setdefault(folder, [[0, 0] for _ in of_runs_by_module])
                of_runs[run] = [
                    total + more for total, more in zip(of_runs[run], figures, strict=True)
                ]
    medians = {folder: _median(of_runs) for folder, of_runs in sums.items()}
    yield from sorted(medians.items(), key=lambda item: -item[1][0])


def _is_folder(names: Sequence[str]) -> bool:
    return len(names) > 1 and CODE.joinpath(*names).is_dir()


def jobs(runs: int) -> Iterator[tuple[str, Figures]]:
    """Yield what processes take that do something, the inputs and outputs of their caller included."""
    with tempfile.TemporaryDirectory(dir=".") as text:
        folder = Path(text).resolve()
        source = folder / "mobilenetv2.onnx"
        zoo.build("mobilenetv2", source)
        pack = compile_onnx(source, folder / "mobilenetv2")
        unknown = []
        for _ in range(runs):
            (pack / "plans.json").unlink(missing_ok=True)
            unknown.append([n_bytes / 1024 for n_bytes in _measured(_OPEN, 1, str(pack))])
        yield "open, plan not known", _median(unknown)
        yield "open, plan known", _measured(_OPEN, runs, str(pack))
        compile_onnx(small_models.tiny(folder), folder / "served" / "tiny")
        served = [_served(folder / "served") for _ in range(runs)]
        yield f"serve, {_REQUESTS:,} requests", _median(served)


def _served(repository: Path) -> Figures:
    """Return what a server takes, in KiB, that has answered the requests."""
    drawn = np.random.default_rng(0).random(small_models.TINY_SHAPE).astype(np.float32)
    body = json.dumps(tensors_document({"x": drawn})).encode()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with running(ours(repository, "4MiB"), "--port") as server:
        client = KeptClient(server.port)
        for _ in range(_REQUESTS):
            status, answer = client.ask("POST", "/v2/models/tiny/infer", body)
            if status != 200:
                raise SystemExit(f"tiny: {status} {answer.decode()}")
        text = Path(f"/proc/{server.pid}/smaps_rollup").read_text(encoding="ascii")
    kib = {line.split()[0]: int(line.split()[1]) for line in text.splitlines()[1:]}
    return kib["Anonymous:"], kib["Rss:"] - kib["Anonymous:"]


_TABLES = {"modules": modules, "folders": folders, "jobs": jobs}


def main() -> None:
    """Measure, and print tables as docs have them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "tables", nargs="*", metavar="TABLE", help=f"{', '.join(_TABLES)}; default: all"
    )
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    if unknown := {*options.tables} - {*_TABLES}:
        parser.error(f"no such table: {', '.join(sorted(unknown))}")
    compile_bytecode()
    for name in options.tables or _TABLES:
        print(f"| {name} | anonymous | files |\n|---|---:|---:|")
        for row, (anonymous, files) in _TABLES[name](options.runs):
            print(f"| {row} | {anonymous / _MIB:.1f} | {files / _MIB:.1f} |", flush=True)
        print()


if __name__ == "__main__":
    main()
