"""The evaluation of seed 003 with our engine: its five networks, our tables and plots beside its Table II.

Each network is built from the zoo where DIR has no NAME.onnx, compiled, profiled, and measured by the same
commands that users have, one process each. Figures are kept as JSON: a network can be measured again alone.

Run as ``python -m benchmarks.paper_table DIR [--networks yolov4,...] [--iterations 20] [--docs docs]``;
``--resolution 224`` measures all of them at that size, where reading is the bottleneck (Fig. 14, 15).
``--redraw`` measures nothing: it makes tables and plots again of the figures that are kept.
"""

import argparse
from pathlib import Path
from typing import Any

from benchmarks.commands import layerstream
from benchmarks.paper.pages import Pages
from benchmarks.paper.reported import NETWORKS, PaperNetwork

ARCHITECTURES = "pre,seq,sync,async,async-md,2s,2s-md,auto@2%,auto@5%"
ARCHITECTURES_SMALL = "pre,2s,2s-md,auto@5%,auto@10%,auto@25%,auto@50%"


def measure(network: PaperNetwork, options: argparse.Namespace) -> dict[str, Any]:
    """Build, compile and profile what is not there yet; return the document of ``bench pipeline``."""
    source, pack = options.folder / f"{network.name}.onnx", options.packs / network.name
    if not source.exists():
        size = ("--resolution", str(network.resolution))
        layerstream("zoo", "build", network.name, *size, "-o", str(source))
    if options.compile or not pack.exists():
        layerstream("compile", str(source), "-o", str(pack), "--force")
    if options.profile or not list(pack.glob("*/profile.json")):
        layerstream("profile", str(pack))
    document: dict[str, Any] = layerstream(
        *("bench", "pipeline", str(pack), "--source", str(source)),
        *("--architectures", options.architectures, "--resolution", str(network.resolution)),
        *("--iterations", str(options.iterations)),
    )
    return document


def parse(names: list[str]) -> argparse.Namespace:
    """Return what the command line asks for; ``names``: all networks.

    Raises:
        SystemExit: it is not understood.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where NAME.onnx is, or is built", nargs="?")
    parser.add_argument(
        "--packs", type=Path, help="where packs are, or are compiled; default DIR/packs"
    )
    parser.add_argument("--networks", default=",".join(names))
    parser.add_argument("--architectures")
    parser.add_argument("--resolution", type=int, help="of all networks; default as in the paper")
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--compile", action="store_true", help="compile again")
    parser.add_argument("--profile", action="store_true", help="profile again")
    parser.add_argument("--redraw", action="store_true", help="of the figures kept; measure none")
    parser.add_argument("--docs", type=Path, default=Path("docs"))
    options = parser.parse_args()
    if unknown := set(options.networks.split(",")) - set(names):
        parser.error(f"unknown network {min(unknown)!r}; there are {', '.join(names)}")
    if options.folder is None and not options.redraw:
        parser.error("DIR is missing: where networks are, or are built")
    return options


def prepare(options: argparse.Namespace) -> None:
    """Fill in where files go and what runs, and make the folder."""
    small = options.resolution is not None
    if small:
        options.folder /= str(options.resolution)
        options.folder.mkdir(exist_ok=True)
    options.architectures = options.architectures or (
        ARCHITECTURES_SMALL if small else ARCHITECTURES
    )
    options.packs = options.packs or options.folder / "packs"


def main() -> None:
    """Measure the networks asked for, or none; write figures, plots and the pages."""
    options = parse([network.name for network in NETWORKS])
    networks: tuple[PaperNetwork, ...] = NETWORKS
    if options.resolution:
        networks = tuple(network.at(options.resolution) for network in NETWORKS)
    pages = Pages(options.docs, networks, options.resolution)
    if options.redraw:
        pages.write()
        return
    prepare(options)
    for network in networks:
        if network.name in options.networks.split(","):
            # After each: a run of all takes a quarter of an hour.
            pages.keep(network.name, measure(network, options))
    print(pages.path)


if __name__ == "__main__":
    main()
