"""Every network of the zoo stored without loss: the same bits, and how many bytes fewer.

Each is built and compiled twice, plain and with ``--store lossless``. Compared are all spans, as they are
in memory, and an answer: streamed in two stages, against all weights in memory of the plain pack.

Of a plain pack that is there already only the spans are compared, which takes a tenth of the time.

Run as ``python -m benchmarks.stored.zoo [NETWORK | F.onnx | PACK ...] [--folder DIR]``; prints Markdown.
Exit 1 where a bit differs.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from models import zoo
from models.compiler import CompileOptions, compile_onnx
from models.packs.pack import Pack, open_pack
from models.packs.records.spans import SPAN_ALIGNMENT, Stored, StoredPart
from models.packs.storing import close_planes, read_span
from pipeline.devices.cpu import CpuDevice
from pipeline.devices.expansion import Expansion
from pipeline.execution.given import Arrays, copies
from pipeline.execution.opened import opened
from pipeline.measuring.sweeps import random_inputs
from pipeline.planning.make import make_plan
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES


@dataclass(frozen=True)
class Gain:
    """A network's weights.bin in bytes, and what differs; ``in_planes``: of its spans, how many."""

    name: str
    plain_bytes: int
    lossless_bytes: int
    in_planes: int
    spans: int
    fault: str

    def row(self) -> str:
        """Return a row of the table."""
        return (
            f"| {self.name} | {self.plain_bytes / 2**20:.1f} | {self.lossless_bytes / 2**20:.1f} | "
            f"{self.lossless_bytes / self.plain_bytes:.3f} | {self.in_planes} of {self.spans} | "
            f"{self.fault or 'the same'} |"
        )


def main() -> None:
    """Print a row for each network as it is done."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("network", nargs="*", default=list(zoo.ENTRIES))
    parser.add_argument("--folder", type=Path, default=Path.cwd())
    options = parser.parse_args()
    print("| | MiB | lossless | of it | spans in planes | bits |\n|---|---:|---:|---:|---:|---|")
    faults = False
    for name in options.network:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            gain = _gain(name, Path(folder))
        print(gain.row(), flush=True)
        faults = faults or bool(gain.fault)
    sys.exit(1 if faults else 0)


def _gain(name: str, folder: Path) -> Gain:
    source = Path(name)
    if source.is_dir():
        return _gain_of_spans(open_pack(source))
    if source.suffix != ".onnx":
        source = folder / f"{name}.onnx"
        zoo.build(name, source)
    options = CompileOptions()
    plain = open_pack(compile_onnx(source, folder / "plain", options))
    lossless = open_pack(
        compile_onnx(source, folder / "lossless", replace(options, store="lossless"))
    )
    spans = lossless.manifest.spans
    planes = sum(
        any(part.planes for part in span.stored.parts) for span in spans if span.stored is not None
    )
    return Gain(
        source.stem,
        plain.weights_path.stat().st_size,
        lossless.weights_path.stat().st_size,
        planes,
        len(spans),
        next(_faults(plain, lossless), ""),
    )


def _gain_of_spans(plain: Pack) -> Gain:
    """Return what storing the spans of ``plain`` would gain, and whether the same bits come out."""
    stored_bytes, planes, fault = 0, 0, ""
    for number, span in enumerate(plain.manifest.spans):
        content = read_span(plain.weights_path, span)
        made = close_planes(content)
        length = -(-made.data.size // SPAN_ALIGNMENT) * SPAN_ALIGNMENT
        stored_bytes += min(length, span.length)
        if length >= span.length:
            continue
        planes += 1
        part = StoredPart(
            encoding="planes", offset=0, length=span.length, planes=made.planes, kept=made.kept
        )
        stored = Stored(offset=0, length=made.data.size, parts=(part,))
        found = np.empty_like(content)
        Expansion([replace(span, stored=stored)]).run(made.data.data, found.data)
        if not np.array_equal(content, found):
            fault = fault or f"span {number}"
    plain_bytes = plain.weights_path.stat().st_size
    return Gain(plain.name, plain_bytes, stored_bytes, planes, len(plain.manifest.spans), fault)


def _faults(plain: Pack, lossless: Pack) -> Iterator[str]:
    """Yield what differs, if anything."""
    pairs = zip(plain.manifest.spans, lossless.manifest.spans, strict=True)
    for number, (one, other) in enumerate(pairs):
        expected = read_span(plain.weights_path, one)
        with lossless.weights_path.open("rb") as file:
            file.seek(other.file_offset)
            stored = bytearray(file.read(other.file_length))
        found = np.empty(other.length, np.uint8)
        Expansion([other]).run(memoryview(stored), found.data)
        if not np.array_equal(expected, found):
            yield f"span {number}"
    inputs = random_inputs(plain.manifest)
    expected_answer = _answer(plain, "pre", inputs)
    for name, array in _answer(lossless, "2s", inputs).items():
        if array.tobytes() != expected_answer[name].tobytes():
            yield f"output {name}"


def _answer(pack: Pack, architecture: str, inputs: Arrays) -> Arrays:
    program = Program.as_compiled(pack)
    plan = make_plan(program, ARCHITECTURES[architecture])
    device = CpuDevice()
    try:
        with opened(program, plan, device) as engine:
            return copies(engine.run(inputs)[0])
    finally:
        device.close()


if __name__ == "__main__":
    main()
