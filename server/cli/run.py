"""``layerstream run``: answer one request on the command line."""

import zlib
from pathlib import Path
from typing import Annotated, Any
from zipfile import BadZipFile, ZipFile

import numpy as np
import typer
from numpy.typing import NDArray

from loader.files import open_reader
from loader.pool import ReadPool
from models.classification import top_classes
from models.pack import Pack, open_pack
from pipeline.devices.cpu import CpuDevice
from pipeline.engine import Engine
from pipeline.errors import InputError
from pipeline.planning.plan import make_plan
from pipeline.statistics import SweepStatistics
from server.cli.options import Json, PackPath, Ring, Threads, architecture, size
from server.cli.output import console, print_json, print_table
from server.errors import InvalidRequestError
from server.images import decode

_MAX_PIXELS = 500_000_000  # the user's own file, not a stranger's upload


def run(
    pack: PackPath,
    image: Annotated[Path | None, typer.Option(help="An image to classify.")] = None,
    input_: Annotated[
        Path | None, typer.Option("--input", help="A .npy tensor, or .npz with one a name.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", help="Write outputs: .npy (one) or .npz.")
    ] = None,
    architecture_name: Annotated[str, typer.Option("--architecture", help="pre, seq, 2s.")] = "2s",
    ring: Ring = None,
    top_k: Annotated[int, typer.Option(min=1, help="How many labels to print.")] = 5,
    verify: Annotated[bool, typer.Option(help="Verify checksums on every sweep.")] = False,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Run a pack once on an image or on tensors."""
    opened = open_pack(pack)
    inputs = _inputs(opened, image, input_)
    plan = make_plan(opened.manifest, architecture(architecture_name), size(ring, "--ring"))
    pool = ReadPool()
    engine = Engine(
        opened, plan, CpuDevice(threads), pool, open_reader(opened.weights_path), verify
    )
    try:
        engine.open()
        outputs, statistics = engine.run(inputs)
    finally:
        engine.close()
        pool.close()
    if output is not None:
        _save(output, outputs)
    _report(
        opened, outputs, statistics, {**plan.as_dict(), "reads": len(plan.groups)}, top_k, as_json
    )


def _inputs(pack: Pack, image: Path | None, tensors: Path | None) -> dict[str, NDArray[Any]]:
    ports = pack.manifest.inputs
    if (image is None) == (tensors is None):
        raise typer.BadParameter("give either --image or --input")
    if tensors is not None:
        return _load(tensors, ports[0].name)
    if pack.manifest.preprocess is None:
        raise InputError(f"{pack.folder}: compiled without --preprocess: give --input X.npy")
    assert image is not None
    if not image.is_file():
        raise InputError(f"{image}: no such file")
    try:
        picture = decode(image, _MAX_PIXELS)
    except InvalidRequestError as exc:
        raise InputError(f"{image}: {exc}") from exc
    return {ports[0].name: pack.manifest.preprocess.apply(picture)}


def _load(path: Path, name: str) -> dict[str, NDArray[Any]]:
    try:
        with path.open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            return {name: loaded} if isinstance(loaded, np.ndarray) else dict(loaded)
    except OSError as exc:
        raise InputError(f"{path}: {exc.strerror or exc}") from exc
    except (ValueError, EOFError, BadZipFile, zlib.error) as exc:
        raise InputError(f"{path}: not a .npy or .npz file: {exc}") from exc


def _save(path: Path, outputs: dict[str, NDArray[Any]]) -> None:
    if path.suffix == ".npz":
        # As numpy.savez, whose own parameters cannot be names of arrays.
        with ZipFile(path, "w") as archive:
            for name, array in outputs.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)
    elif len(outputs) == 1:
        np.save(path, next(iter(outputs.values())))
    else:
        raise InputError(f"{path}: the model has {len(outputs)} outputs; write them to .npz")


def _report(
    pack: Pack,
    outputs: dict[str, NDArray[Any]],
    statistics: SweepStatistics,
    plan: dict[str, Any],
    top_k: int,
    as_json: bool,
) -> None:
    classification = pack.manifest.classification
    best = []
    if classification is not None:
        best = top_classes(classification, outputs[classification.output], top_k)
    if as_json:
        print_json(
            {
                "model": pack.name,
                "plan": plan,
                "delay_ms": statistics.delay_seconds * 1e3,
                "stall_ms": statistics.stall_seconds * 1e3,
                "read_bytes": statistics.read_bytes,
                "outputs": {
                    name: {"dtype": array.dtype.name, "shape": list(array.shape)}
                    for name, array in outputs.items()
                },
                "predictions": [
                    {"label": item.label, "probability": item.probability, "index": item.index}
                    for item in best
                ],
            }
        )
        return
    if best:
        rows = ((item.label, f"{item.probability:.4f}", str(item.index)) for item in best)
        print_table(pack.name, ("label", "probability", "index"), rows)
    for name, array in outputs.items():
        console.print(f"{name}: {array.dtype} {list(array.shape)}", highlight=False)
    console.print(
        f"{statistics.delay_seconds * 1e3:.1f} ms, of which {statistics.stall_seconds * 1e3:.1f} ms "
        f"waiting for weights; {plan['weight_bytes'] / 2**20:.2f} MiB of weights in memory",
        highlight=False,
        soft_wrap=True,
    )
