"""Subjects of `bench`: architectures, networks (built if they must be), and other runtimes."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.arguments import Json, Threads, architecture, open_named, weight_bytes
from cli.printing.bench_tables import network_lines, print_peers
from cli.printing.output import print_json, tell, warn
from cli.printing.steps import bar, steps
from loader.readers.disk import REAL_DISK, Disk
from models.errors import ModelError
from models.packs.folders import find_pack
from models.packs.manifest import Manifest
from models.packs.pack import Pack, open_pack
from pipeline.benchmark.comparison import WAYS, Comparison, compare
from pipeline.benchmark.configuration import BenchConfiguration
from pipeline.benchmark.contenders import find_source
from pipeline.benchmark.ours import StreamedArchitecture
from pipeline.benchmark.run import machine
from pipeline.devices.base import Device
from pipeline.energy import find_meter
from pipeline.execution.errors import InputError
from pipeline.measuring.profiling import Progress, profile_pack
from pipeline.profiles.machine import this_machine
from pipeline.profiles.profile import Profile, ProfileError
from pipeline.profiles.profile_file import load_profile, save_profile
from pipeline.schedule.architectures import ARCHITECTURES

# ``--architectures pre,2s@12MiB,auto@2%``: what ``bench pipeline`` measures, and its profile.

_SHORT_ITERATIONS = 3


def configurations(
    texts: str, weights: str | None, manifest: Manifest, total_bytes: int | None = None
) -> list[BenchConfiguration]:
    """Return the configurations that ``texts`` names, each once; ``weights`` limits a plain ``auto``.

    With ``total_bytes`` that does instead, of all memory, and ``auto`` is always among them.

    Raises:
        typer.BadParameter: a name or a size is none.
    """
    by_text = {}
    for text in (part.strip() for part in texts.split(",")):
        name, _, limit = text.partition("@")
        chosen = architecture(name, "--architectures")
        default = weights if chosen.tuned == "auto" else None
        option = "--architectures" if limit else "--weights"
        by_text[text] = BenchConfiguration(
            text, chosen, weight_bytes(limit or default, manifest, option)
        )
    if total_bytes is not None:
        by_text["auto"] = BenchConfiguration("auto", ARCHITECTURES["auto"], total_bytes=total_bytes)
    return list(by_text.values())


def profile_for(
    pack: Pack,
    chosen: Sequence[BenchConfiguration],
    device: Device,
    say: Callable[[str], None],
    progress: Progress = lambda done, total: None,
    disk: Disk = REAL_DISK,
) -> Profile | None:
    """Return the profile of ``pack``; measure a short one, and say so, where a configuration needs it."""
    try:
        return load_profile(pack, this_machine(pack.weights_path, device, disk))
    except ProfileError as exc:
        tuned = [each.label for each in chosen if each.tuned]
        if not tuned:
            return None
        say(f"{exc}; measuring a short one, which {', '.join(tuned)} needs, and keeping it there")
    measured = profile_pack(pack, device, _SHORT_ITERATIONS, progress, disk=disk)
    try:
        save_profile(measured, pack)
    except ProfileError as exc:
        say(f"{exc}; it will be measured again")
    return measured


# Networks that are measured: of the zoo, ONNX files or packs, built and compiled where they must be.


@dataclass(frozen=True)
class Named:
    """A network that a user named. ``path``: of a pack or an ONNX file; None: one of the zoo."""

    name: str
    path: Path | None


def named(name: str, side: int | None) -> Named:
    """Return what ``name`` means: one of the zoo, or else the path of a pack or an ONNX file.

    ``side``: pixels that networks of the zoo are built for. Raises:
        InputError: it is none of these, or takes pixels of its own. PackError: it is a folder and no pack.
    """
    path = Path(name)
    bare = path.name == name and path.suffix != ".onnx"
    unknown = _unknown(name) if bare else ""
    if bare and not unknown:
        if path.exists():
            warn(f"{name}: the network of the zoo; ./{name} is what lies here")
        return Named(name, None)
    if not path.exists():
        hint = f"{unknown}; a pack or an ONNX file is named by its path" if bare else ""
        raise InputError(hint or f"{name}: no such file, nor a pack")
    if side is not None:
        raise InputError(f"{name}: --resolution is of networks of the zoo: this one has its own")
    if path.is_dir():
        find_pack(path)
    return Named(name, path)


def _unknown(name: str) -> str:
    """Return why ``name`` is no network of the zoo, or an empty text."""
    from models import zoo  # onnx: not for the service

    try:
        zoo.find(name)
    except ModelError as exc:
        return str(exc)
    return ""


@contextmanager
def _network(
    requested: Named, side: int | None, folder: Path
) -> Iterator[tuple[Pack, Path | None]]:
    """Yield the ``requested`` network, as a pack and as the ONNX file it was compiled from."""
    if requested.path is None:
        with built(requested.name, side, folder) as network:
            yield network
    elif requested.path.is_dir():
        pack = open_pack(requested.path)
        yield pack, find_source(pack)
    else:
        with _compiled(requested.path, requested.path.stem, folder) as pack:
            yield pack, requested.path


@contextmanager
def built(name: str, side: int | None, folder: Path) -> Iterator[tuple[Pack, Path]]:
    """Yield a network of the zoo as a pack and as the ONNX file it was compiled from."""
    from models import zoo  # onnx: not for the service

    with _scratch(folder) as place:
        source = place / f"{zoo.find(name).name}.onnx"
        with steps(f"{name} at {side} px" if side else name) as progress:
            zoo.build(name, source, side, progress=progress)
        with _compiled(source, source.stem, place) as pack:
            yield pack, source


@contextmanager
def _compiled(source: Path, name: str, folder: Path) -> Iterator[Pack]:
    """Yield the pack of ``source``; it is removed at the end."""
    from models.compiler import compile_onnx  # onnx: not for the service

    with _scratch(folder) as place, steps(name) as progress:
        yield open_pack(compile_onnx(source, place / name, progress=progress))


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    try:
        scratch = tempfile.TemporaryDirectory(prefix="layerstream-bench-", dir=folder)
    except OSError as exc:
        raise InputError(f"{folder}: {exc.strerror or exc}") from exc
    with scratch as place:
        yield Path(place)


# ``layerstream bench peers``: networks beside ONNX Runtime and OpenVINO, one table of all.

_USUAL = ",".join(f"{way.percent:g}%" for way in WAYS if way.percent is not None)


def peers(
    context: typer.Context,
    names: Annotated[
        list[str],
        typer.Argument(metavar="NETWORK...", help="Names from `zoo list`, packs, or ONNX files."),
    ],
    runs: Annotated[int, typer.Option(min=1, help="Runs of each, taking turns.")] = 20,
    weights: Annotated[
        str, typer.Option(help="Parts of the weights that `auto` may hold, comma-separated.")
    ] = _USUAL,
    resolution: Annotated[
        int | None, typer.Option(min=1, help="Of networks of the zoo, in pixels.")
    ] = None,
    threads: Threads = None,
    folder: Annotated[
        Path, typer.Option(help="Where networks are built and compiled, and removed again.")
    ] = Path(),
    as_json: Json = False,
) -> None:
    """Compare networks with ONNX Runtime and OpenVINO holding all weights: delay, memory of a cgroup.

    Example: layerstream bench peers resnet50

    Rows of each network are printed on stderr when it ends, and all in one table in the end.
    """
    ways = [
        StreamedArchitecture("pre"),
        *(StreamedArchitecture("auto", percent) for percent in _percents(weights)),
    ]
    device = open_named(context, "cpu", threads)
    requested = [named(name, resolution) for name in names]
    networks = []
    for each in requested:
        # Without warnings of a missing profile: such a pack was made for this run and is removed after it.
        kept = warn if each.path is not None and each.path.is_dir() else _silent
        with _network(each, resolution, folder) as (pack, source):
            wanted = Comparison(pack, source, device.threads, ways, runs=runs)
            networks.append(_measured(wanted, device, kept))
        for line in network_lines(networks[-1]):
            tell(line)
    result = {"machine": machine(device), "runs": runs, "networks": networks}
    if as_json:
        print_json(result)
    else:
        print_peers(result)


def _silent(line: str) -> None:
    pass


def _measured(
    wanted: Comparison, device: Device, say_profile: Callable[[str], None]
) -> dict[str, Any]:
    auto = BenchConfiguration("auto", ARCHITECTURES["auto"])
    with bar(f"profiling {wanted.pack.name}") as shown:
        profile_for(wanted.pack, [auto], device, say_profile, shown.step)
    with bar(f"measuring {wanted.pack.name}") as shown:
        return compare(
            wanted, progress=lambda done: shown.step(done, wanted.runs), meter=find_meter()
        )


def _percents(text: str) -> list[float]:
    """Return the percentages that ``text`` lists, each once.

    Raises:
        typer.BadParameter: one is none above 0 and up to 100.
    """
    parts = [part.strip() for part in text.split(",")]
    try:
        percents = [float(part.removesuffix("%")) for part in parts if part.endswith("%")]
    except ValueError:
        percents = []
    if len(percents) != len(parts) or not all(0 < percent <= 100 for percent in percents):
        raise typer.BadParameter(f"{text!r} is not 5%,2%,...", param_hint="--weights")
    return list(dict.fromkeys(percents))
