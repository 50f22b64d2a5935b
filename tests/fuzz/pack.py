"""Fuzz the pack reader: ``python -m tests.fuzz.pack [seconds] [first example] [--minutes N]``.

Each example damages the manifest or the pieces of a real pack and opens it. The reader may refuse it with
PackError; what it accepts must be plannable. Anything else ends the run with the example's number.
"""

import argparse
import copy
import itertools
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from models.compiler import CompileOptions, compile_onnx
from models.errors import PackError
from models.packs.manifest import checksum, with_checksum, without_checksum
from models.packs.names import MANIFEST
from models.packs.pack import open_pack
from pipeline.planning.make import make_plan
from pipeline.planning.plan import PlanError
from pipeline.planning.shapes import together
from pipeline.program.choice import choose_pieces, chunk_sizes, streamed_bytes
from pipeline.program.prepare import with_lookups
from pipeline.program.program import PreparedPiece, Program
from pipeline.schedule.architectures import ARCHITECTURES
from tests.fuzz.rows import check_regions
from tests.models.compiler.cutting.test_tables import embedding
from tests.models.compiler.test_resident import selection
from tests.models.detector import square_finder
from tests.models.nets import CHUNK_BYTES, concat, residual, written
from tests.models.packs.documents import document_of, text_of
from tests.models.texts import encoder

#: Values that programs forget about.
ODD_VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        3,
        4095,
        4096,
        1 << 31,
        1 << 32,
        (1 << 63) - 1,
        1 << 63,
        1 << 70,
    ),
    *(
        0.5,
        1e308,
        -0.0,
        float("nan"),
        float("inf"),
        "",
        "0",
        "x",
        "\n",
        "\ud800",
        "../x",
        "/",
        "\0",
    ),
    *([], {}, [None], [[]], {"": 1}, [0] * 70, [1 << 40] * 3),
)


def attempt(folder: Path) -> bool:
    """Open the pack in ``folder``, join its chunks and plan it; return whether it was accepted."""
    try:
        pack = open_pack(folder)
    except PackError as exc:
        if not str(exc).isprintable() or str(folder) not in str(exc):
            raise AssertionError(f"not one line that names the file: {str(exc)!r}") from exc
        return False
    programs = [with_lookups(Program.as_compiled(shape)) for shape in (pack, *pack.others)]
    for program in programs:
        check_plans(program)
    if pack.others:
        plans = [make_plan(program, ARCHITECTURES["pre"]) for program in programs]
        planned = together(programs, plans)
        assert planned.resident_bytes <= sum(plan.resident_bytes for plan in plans)
        shapes = pack.shapes
        assert shapes.find({port.name: port.shape for port in pack.manifest.inputs}) == (0, None)
        assert len(shapes.inputs) == len(pack.manifest.inputs)
    return True


def check_plans(program: Program) -> None:
    """Check joined pieces and regions of ``program``, and that it has plans or an error that says why."""
    for limit in (0, *chunk_sizes(program)[:4], None):
        check_joined(program, choose_pieces(program, limit))
    check_regions(program)
    for architecture in ARCHITECTURES.values():
        for ring_bytes in (None, 0, program.largest_chunk_bytes, 1 << 60):
            try:
                make_plan(program, architecture, ring_bytes)
            except PlanError as exc:
                if not str(exc):
                    raise


def check_joined(program: Program, pieces: Sequence[PreparedPiece]) -> None:
    """Check that joined pieces touch no byte outside of values and their own spans."""
    for piece in pieces:
        if piece.n_spans == 1:
            continue
        for operand in (*piece.inputs, *piece.outputs):
            if operand.kind == "value":
                room = program.values[operand.index].n_bytes
            elif operand.index == piece.span:
                room = streamed_bytes(program, piece)
            else:
                room = program.spans[operand.index].length
            assert operand.offset + operand.n_bytes <= room, operand


def leaves(document: Any) -> list[tuple[Any, Any]]:
    """Return (container, key) of everything inside ``document``."""
    if not isinstance(document, dict | list):
        return []
    items = list(document.items() if isinstance(document, dict) else enumerate(document))
    return [(document, key) for key, _ in items] + [
        leaf for _, value in items for leaf in leaves(value)
    ]


def change_leaf(document: Any, rng: random.Random) -> None:
    """Replace, remove, repeat or swap something in ``document``."""
    places = leaves(document)
    container, key = rng.choice(places)
    match rng.randrange(5):
        case 0:
            # A copy: what is put in may be damaged in turn, or put into itself.
            container[key] = copy.deepcopy(rng.choice(ODD_VALUES))
        case 1:
            del container[key]
        case 2:
            other, name = rng.choice(places)
            container[key] = json.loads(json.dumps(other[name]))
        case 3 if isinstance(container, list):
            container.insert(rng.randrange(len(container) + 1), container[key])
        case _:
            if isinstance(container[key], int):
                container[key] += rng.choice((-4096, -64, -1, 1, 2, 64, 4096))


def change_bytes(data: bytes, rng: random.Random) -> bytes:
    """Flip, cut, remove or repeat bytes."""
    damaged = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(damaged) + 1)
        match rng.randrange(4):
            case 0 if at < len(damaged):
                damaged[at] = rng.randrange(256)
            case 1:
                del damaged[at : at + rng.randint(1, 40)]
            case 2:
                damaged[at:at] = damaged[at : at + rng.randint(1, 40)]
            case _:
                del damaged[rng.randrange(len(damaged) // 2, len(damaged) + 1) :]
    return bytes(damaged)


#: The files of a pack that are damaged.
_DAMAGED = frozenset((MANIFEST, "shape-1.json", "pieces.bin"))
Main = Callable[[list[str]], int]


class PackFuzzer:
    """Damages copies of ``sound`` packs in ``folder``; example ``number`` is always the same."""

    def __init__(self, sound: Sequence[Path], folder: Path) -> None:
        self._copies = [
            Path(shutil.copytree(pack, folder / str(number))) for number, pack in enumerate(sound)
        ]
        self._sound = [
            {path.name: path.read_bytes() for path in pack.iterdir() if path.name in _DAMAGED}
            for pack in sound
        ]

    def run(self, number: int) -> bool:
        """Damage, open, plan; return whether it was accepted."""
        rng = random.Random(number)
        damage = rng.choice((damage_leaves, damage_leaves, damage_text, damage_graphs))
        chosen = rng.randrange(len(self._copies))
        files = dict(self._sound[chosen])
        record = rng.choice(sorted(files.keys() - {"pieces.bin"}))
        files[record], files["pieces.bin"] = damage(files[record], files["pieces.bin"], rng)
        if record != MANIFEST:  # which has its checksum
            document = document_of(files[MANIFEST])
            listed = {"n_bytes": len(files[record]), "checksum": checksum(files[record])}
            document["files"][record] = listed
            files[MANIFEST] = text_of(document)
        for name, data in files.items():
            (self._copies[chosen] / name).write_bytes(data)
        return attempt(self._copies[chosen])


def damage_leaves(manifest: bytes, pieces: bytes, rng: random.Random) -> tuple[bytes, bytes]:
    """Change the manifest as a document."""
    document = document_of(manifest)
    for _ in range(rng.randint(1, 3)):
        if document:
            change_leaf(document, rng)
    return text_of(document), pieces


def damage_text(manifest: bytes, pieces: bytes, rng: random.Random) -> tuple[bytes, bytes]:
    """Change the manifest as bytes; half of the time its checksum agrees."""
    if rng.random() < 0.5:
        return change_bytes(manifest, rng), pieces
    return with_checksum(change_bytes(without_checksum(manifest)[0], rng)), pieces


def damage_graphs(manifest: bytes, pieces: bytes, rng: random.Random) -> tuple[bytes, bytes]:
    """Change the pieces; half of the time the manifest agrees with what came of them."""
    damaged = change_bytes(pieces, rng)
    document = document_of(manifest)
    if rng.random() < 0.5:
        record = {"n_bytes": len(damaged), "checksum": checksum(damaged)}
        document["files"]["pieces.bin"] = record
    return text_of(document), damaged


def chosen_run(arguments: list[str]) -> tuple[float, int]:
    """Return for how many seconds to run, and from which example on: a random one unless given."""
    parser = argparse.ArgumentParser()
    parser.add_argument("seconds", type=float, nargs="?", default=60.0)
    parser.add_argument("first", type=int, nargs="?")
    parser.add_argument("--minutes", type=float)
    chosen = parser.parse_args(arguments)
    seconds = chosen.seconds if chosen.minutes is None else 60 * chosen.minutes
    first = random.SystemRandom().randrange(1 << 40) if chosen.first is None else chosen.first
    print(f"first example: {first}")
    return seconds, first


def run_examples(run: Callable[[int], bool], seconds: float, first: int) -> int:
    """Run examples from ``first`` on for ``seconds``; return the exit status."""
    ends = time.monotonic() + seconds
    accepted = 0
    for number in itertools.count(first):
        if time.monotonic() > ends:
            print(f"{number - first} examples, {accepted} accepted, no fault found")
            return 0
        try:
            accepted += run(number)
        except BaseException:
            print(f"example {number} failed", file=sys.stderr)
            raise
    raise AssertionError("numbers do not end")


def sound_packs(folder: Path) -> list[Path]:
    """Compile networks: chunks, a resident span, values joined, a detector, a resident piece, a table.

    The last one has two shapes.
    """
    options = CompileOptions(chunk_bytes=CHUNK_BYTES)
    packs = []
    folder.mkdir()
    resident, _ = selection()
    for name, model in (
        ("tiny", residual()),
        ("joined", concat()),
        ("detector", square_finder()),
        ("resident", resident),
        ("table", embedding()),
    ):
        packs.append(compile_onnx(written(model, folder / f"{name}.onnx"), folder / name, options))
    shapes = replace(options, shapes={"tokens": (4, 8)})
    packs.append(compile_onnx(written(encoder("n"), folder / "n.onnx"), folder / "n", shapes))
    return packs


def main(arguments: list[str]) -> int:
    seconds, first = chosen_run(arguments)
    with tempfile.TemporaryDirectory() as name:
        fuzzer = PackFuzzer(sound_packs(Path(name, "sound")), Path(name, "damaged"))
        return run_examples(fuzzer.run, seconds, first)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
