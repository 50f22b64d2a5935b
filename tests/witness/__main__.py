"""Facts of many networks, recorded before the inside changes and compared while it does.

``python -m tests.witness record FILE [--only PATTERN,...]`` writes the facts of all subjects, or into an
old FILE those of some. ``compare`` prints what is not as recorded, and ends with 1. ``--ignore`` names
facts that may change: the bytes of pieces (``graphs``) unless it says otherwise.

Facts hold for one machine, which the record names: bits and layouts depend on the instruction set, on ONNX
Runtime, and on the C compiler. Elsewhere ``compare`` says so and compares nothing. Everything computes on
two threads of a pool that all sessions share, as in our commands.
"""

import argparse
import hashlib
import itertools
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import astuple, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from models.compiler import compile_onnx
from models.compiler.cutting.meter import Allocated, Meter
from models.compiler.for_c import graph_for_c
from models.packs.pack import Pack, open_pack
from models.packs.target import host_target
from models.records import plain, to_json
from models.runtime.sessions import claim_process, use_threads
from papers.cnn.of_pack import cnn_of_pack
from pipeline.budget.request_needs import Need, smallest_budgets
from pipeline.devices.base import Device
from pipeline.devices.cpu import CpuDevice
from pipeline.devices.cuda import call
from pipeline.devices.cuda.lowering import NotCoveredError, lower
from pipeline.devices.cuda.scope import ConvolutionSettings
from pipeline.execution.opened import opened
from pipeline.export_c.export import ExportOptions, export_c, write_export
from pipeline.export_c.network.network import ExportError
from pipeline.fitting.fit import fit
from pipeline.fitting.wanted import LEAST, NOTHING, Wanted
from pipeline.measuring.sweeps import random_inputs
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Plan, PlanError
from pipeline.program.kernels import (
    Chain,
    CopyKernel,
    FillKernel,
    IntegerTask,
    OrtGraph,
    TableLookup,
)
from pipeline.program.prepare import prepare
from pipeline.program.program import PreparedJoin, PreparedPiece, Program
from pipeline.program.region_plan import ChannelCut, Cut, Region, RowCut
from pipeline.schedule.architectures import ARCHITECTURES
from tests.pipeline.devices.cuda.driving import driver_of
from tests.pipeline.devices.cuda.space import some_kernels
from tests.pipeline.devices.cuda.test_cuda_networks import device_on, engine_of
from tests.pipeline.export_c.compiled import COMPILER, Compiled
from tests.pipeline.export_c.program import stack_bytes, static_bytes
from tests.witness.subjects import Inputs, Subject, subjects

Facts = Iterator[tuple[str, Any]]

THREADS = 2
GRAPHS = "graphs"
#: Of all memory, of none, of activations: what plans are asked for.
BUDGETS = {
    "pre": ("least", "more", "free"),
    "2s": ("least", "more", "free"),
    "auto": ("least", "more", "free", "lean"),
}


class _Nothing(Meter):
    """Measures nothing: what a kernel allocates differs a little from time to time."""

    def allocated(self, *_: object) -> Allocated:
        return Allocated(0, 0)


def facts_of(subject: Subject, device: Device, folder: Path) -> Facts:
    source = folder / "source.onnx"
    inputs = subject.make(source)
    target = subject.options.target
    options = replace(subject.options, meter=_Nothing())
    pack = open_pack(compile_onnx(source, folder / "pack", options), target)
    inputs = inputs or random_inputs(pack.manifest)
    yield "source", digest(source.read_bytes())
    yield from of_pack(pack)
    if target is not None:
        yield from of_launches(pack)
        yield from of_emulation(pack, inputs) if subject.emulated else ()
        return
    if subject.options.store == "fp32":  # C has weights as they are computed with
        yield from of_c(source, inputs, subject, folder / "c")
    program = prepare(pack, device)
    yield from of_decisions(program)
    yield from of_plans(program, device, inputs)


def of_pack(pack: Pack) -> Facts:
    manifest = pack.manifest
    yield "weights", digest(pack.weights_path.read_bytes())
    yield GRAPHS, digest((pack.folder / "pieces.bin").read_bytes())
    counted = ("layers", "pieces", "spans", "alternatives", "row_operators", "bottlenecks")
    yield "counts", " ".join(f"{name} {len(getattr(manifest, name))}" for name in counted)
    layers = [(each.name, each.operator, each.weight_bytes) for each in manifest.layers]
    yield "layer table", digest(steady(layers).encode())
    recipes = ("preprocess", "classification", "detection", "designed", "parameters")
    document = {name: plain(getattr(manifest, name)) for name in recipes}
    yield "recipes", digest(to_json(document).encode())
    cnn = cnn_of_pack(manifest).cnn
    counts = f"{len(cnn.layers)} layers, {len(cnn.edges)} edges"
    yield "cnn", f"{counts}; {digest(steady(astuple(cnn)).encode())}"
    ports = (*manifest.inputs, *manifest.outputs)
    yield "ports", " ".join(f"{p.name}:{p.dtype}{list(p.shape)}" for p in ports).replace(", ", ",")


def of_decisions(program: Program) -> Facts:
    """Yield what runs each piece: how many of a kind, and which ones."""
    kinds = [kind(program, piece) for piece in program.pieces]
    runs = (f"{name}{len(list(run))}" for name, run in itertools.groupby(kinds))
    counts = " ".join(f"{name} {count}" for name, count in sorted(Counter(kinds).items()))
    yield "kinds", f"{counts}; {digest(' '.join(runs).encode())}"
    joined = [kind(program, part) for way in program.alternatives for part in way.joined]
    rows = [str(not isinstance(kernel, OrtGraph)) for kernel in program.row_kernels]
    yield "kinds joined and on rows", digest(" ".join([*joined, *rows]).encode())
    reasons = [
        reason for piece in program.pack.manifest.resident_pieces for reason in piece.reasons
    ]
    if reasons:
        yield "resident because", "; ".join(reasons)


def kind(program: Program, piece: PreparedPiece | PreparedJoin) -> str:
    match piece.kernel:
        case OrtGraph(resident=True):
            return "resident"
        case OrtGraph():
            return "joins" if piece.graph in program.joins else "onnxruntime"
        case IntegerTask():
            return "integers"
        case TableLookup():
            return "table"
        case Chain() | CopyKernel():
            return "elements"
        case FillKernel():
            raise AssertionError("a region fills, no piece does")


def of_plans(program: Program, device: Device, inputs: Inputs) -> Facts:
    """Yield plans of three architectures in several budgets, and the bits that they give."""
    bits: dict[str, list[str]] = {}
    for name, words in BUDGETS.items():
        architecture = ARCHITECTURES[name]
        least = fit(program, architecture, LEAST).plan
        activations = least.arena_bytes + least.scratch_bytes + least.io_bytes
        wanted = {
            "least": LEAST,
            "more": Wanted(total_bytes=least.total_bytes * 3 // 2),
            "free": NOTHING,
            "lean": Wanted(arena_bytes=activations * 3 // 4),
        }
        for word in words:
            try:
                plan = fit(program, architecture, wanted[word]).plan
            except PlanError as exc:
                yield f"plan {name} {word}", str(exc)
                continue
            yield f"plan {name} {word}", planned(plan)
            with opened(program, plan, device, verify=True) as engine:
                for _ in range(2):
                    bits.setdefault(answer(engine.run(inputs)[0]), []).append(f"{name} {word}")
        if name == "auto":
            smallest = smallest_budgets(least.total_bytes, [Need.of(program.pack.manifest)])
            yield "smallest budget", f"full {smallest.full_bytes} bare {smallest.bare_bytes}"
    same = len(bits) == 1
    said = {each: "all" if same else ", ".join(dict.fromkeys(of)) for each, of in bits.items()}
    yield "bits", "; ".join(f"{each} of {of}" for each, of in said.items())


def planned(plan: Plan) -> str:
    regions = " ".join(map(region, plan.choice.regions))
    return f"{sizes(plan)} launches {plan.launches} regions {regions or 'none'}"


def sizes(plan: Plan) -> str:
    return " ".join(f"{name} {n_bytes}" for name, n_bytes in plan.memory.items() if n_bytes)


def region(item: Region) -> str:
    return f"{item.first_piece}-{item.end_piece}:{cut(item.cut)}{'a' * item.in_arena}"


def cut(item: Cut) -> str:
    match item:
        case RowCut(rows):
            return f"{rows}"
        case ChannelCut(channels, rows):
            return f"{rows}c{channels}"


def of_c(source: Path, inputs: Inputs, subject: Subject, folder: Path) -> Facts:
    """Yield the files that export-c makes, or why it makes none."""
    folder.mkdir()
    work = folder / "work"
    work.mkdir()
    graph = graph_for_c(source, work, subject.options)
    try:
        exported = export_c(graph, ExportOptions(weights="callback", prefix="net"))
    except ExportError as exc:
        yield "c refused", str(exc).replace(str(source), "SOURCE")
        return
    write_export(exported, folder / "files")
    files = sorted((folder / "files").iterdir())
    yield "c files", " ".join(f"{file.suffix} {digest(file.read_bytes())}" for file in files)
    yield "c arena", exported.memory.arena_bytes
    if subject.runs_c:
        compiled = Compiled.of(graph, folder / "made", weights="callback", prefix="net")
        status, outputs = compiled.run(inputs)
        yield "c outputs", f"{status} {answer(outputs)}"
        stack_bytes(exported, folder / "made")
        yield "c bss", static_bytes(folder / "made")[".bss"]


def of_launches(pack: Pack) -> Facts:
    """Yield the launches of a pack for CUDA, lowered for a device as small as a Jetson's."""
    lowered = {}
    for number in sorted({piece.graph for piece in pack.manifest.pieces}):
        try:
            lowered[number] = lower(pack.graphs[number], ConvolutionSettings())
        except NotCoveredError as exc:
            lowered[number] = call.LaunchProgram((), 0)
            yield f"graph {number} on the CPU", str(exc)
    programs = [lowered[piece.graph] for piece in pack.manifest.pieces]
    calls = [repr(astuple(call)) for program in programs for call in program.calls]
    yield "launches", f"{len(calls)}; {digest(' '.join(calls).encode())}"
    tables = [array.tobytes() for program in programs for array in program.constants]
    yield "constants", f"{len(tables)}; {digest(b' '.join(tables))}"
    inner = [program.inner_bytes for program in programs]
    yield "inner", f"most {max(inner)} sum {sum(inner)}"
    yield "plan async", sizes(make_plan(Program.as_compiled(pack), ARCHITECTURES["async"]))


def of_emulation(pack: Pack, inputs: Inputs) -> Facts:
    for name in ("pre", "async"):
        plan = make_plan(Program.as_compiled(pack), ARCHITECTURES[name])
        driver = driver_of(some_kernels())
        with device_on(driver) as device, engine_of(pack, plan, device) as (engine, _):
            said = answer(engine.run(inputs)[0])
        yield f"emulated {name}", said


def steady(value: Any) -> str:
    """Return ``value`` as text, without what ONNX Runtime adds to names: another number each time."""
    return re.sub(r"_token_\d+", "", str(value))


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def answer(outputs: Inputs) -> str:
    """Return a digest of the names, shapes and bits of outputs."""
    said = hashlib.sha256()
    for name, array in outputs.items():
        bits = array.tobytes() if array.dtype.kind not in "OUS" else repr(array.tolist()).encode()
        said.update(f"{name} {array.dtype.kind} {array.shape} ".encode() + bits)
    return said.hexdigest()[:16]


def machine(device: Device) -> str:
    """Return what facts depend on beside the code."""
    host = host_target()
    products = "saturate" if host.exact_weights < 1 << 7 else "are exact"
    version = [str(COMPILER), "-dumpfullversion"]
    compiler = COMPILER and subprocess.run(version, capture_output=True, text=True, check=True)
    return (
        f"{host.isa} block {host.block}, products of bytes {products}, kernels "
        f"{device.native_kernels} and {device.quantised_kernels}, {THREADS} threads; onnxruntime "
        f"{host.onnxruntime}, onnx {onnx.__version__}, numpy {np.__version__}, gcc "
        f"{compiler and compiler.stdout.strip()}, {' '.join(platform.libc_ver())}"
    )


def witnessed(name: str, subject: Subject, device: Device) -> dict[str, Any]:
    """Return the facts of one subject, and say what they took; what fails is a fact, too."""
    before = sum(os.times()[:4])
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            for fact, value in facts_of(subject, device, Path(folder)):
                found[f"{name}/{fact}"] = value if isinstance(value, int) else steady(value)
        except Exception as exc:  # noqa: BLE001  the others are worth recording
            found[f"{name}/fails"] = f"{type(exc).__name__}: {exc}".replace(folder, "FOLDER")
    print(f"{name}: {sum(os.times()[:4]) - before:.1f} CPU s", file=sys.stderr, flush=True)
    return found


def differences(
    recorded: Mapping[str, Any], found: Mapping[str, Any], ignored: str
) -> Iterator[str]:
    """Yield what is not as recorded, but of facts that ``ignored`` names."""
    for key in sorted(recorded.keys() | found.keys()):
        old, new = (str(facts.get(key, "nothing")) for facts in (recorded, found))
        if old != new and not is_one_of(key.split("/")[1], ignored):
            yield f"{key}: {changes(old.split(), new.split())}"


def changes(old: list[str], new: list[str]) -> str:
    """Return what is different: words, with the one before them where both have as many, or everything."""
    if len(old) != len(new):
        return f"{' '.join(old)} -> {' '.join(new)}"
    triples = zip(["", *old], old, new, strict=False)
    return ", ".join(
        f"{name} {one} -> {other}".strip() for name, one, other in triples if one != other
    )


def is_one_of(name: str, patterns: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns.split(","))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.witness", description=__doc__)
    parser.add_argument("command", choices=("record", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="*", help="names of subjects, or patterns")
    parser.add_argument("--ignore", default=GRAPHS, help="names of facts, or patterns")
    given = parser.parse_args()
    claim_process()
    use_threads(THREADS)
    device = CpuDevice()
    here = machine(device)
    old = json.loads(given.file.read_text()) if given.file.exists() else {}
    if given.command == "compare" and old["machine"] != here:
        print(f"nothing compared: recorded on {old['machine']}, this is {here}")
        return 0
    facts = old["facts"] if old.get("machine") == here else {}
    different = 0
    for name, subject in subjects().items():
        if not is_one_of(name, given.only):
            continue
        found = witnessed(name, subject, device)
        before = {key: value for key, value in facts.items() if key.startswith(f"{name}/")}
        if given.command == "record":
            facts = {key: value for key, value in facts.items() if key not in before} | found
            document = {"machine": here, "facts": facts}
            given.file.write_text(json.dumps(document, indent=0, sort_keys=True) + "\n")
            continue
        for text in differences(before, found, given.ignore):
            different += 1
            print(text, flush=True)
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main())
