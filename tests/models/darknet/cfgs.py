"""Networks for tests: small ones in files, one of each kind, and those of the zoo at other sizes."""

from collections.abc import Iterable
from pathlib import Path

from models.darknet.cfg import format_cfg
from models.zoo.darknet import DARKNET_ENTRIES, SECTIONS
from models.zoo.entry import ZooEntry
from tests.models.darknet.oracle import Options, Sections, parse

#: Small cfgs by name: among them they have every way in which sections of the zoo's are joined.
SMALL = {path.stem: path for path in sorted((Path(__file__).parent / "small").glob("*.cfg"))}

#: The published networks by name in the zoo; test_zoo_darknet.py says that they are.
ZOO: dict[str, ZooEntry] = {entry.name: entry for entry in DARKNET_ENTRIES}


def zoo_text(name: str) -> str:
    """Return the cfg of a network of the zoo."""
    return format_cfg(SECTIONS[name]())


def cfg_text(sections: Iterable[tuple[str, Options]]) -> str:
    return "".join(
        f"[{kind}]\n" + "".join(f"{key}={value}\n" for key, value in options.items()) + "\n"
        for kind, options in sections
    )


def at_resolution(sections: Sections, resolution: int) -> Sections:
    """Return ``sections`` for square images; a crop keeps its part of the image."""
    width = int(sections[0][1]["width"])
    crop = ("crop_width", "crop_height")
    changed = []
    for kind, options in sections:
        sizes: Options = {}
        if kind == "net":
            sizes = {"width": str(resolution), "height": str(resolution)}
        if kind == "crop":
            sizes = {key: str(int(int(options[key]) / width * resolution)) for key in crop}
        changed.append((kind, options | sizes))
    return changed


def shrunken(text: str, divisor: int, resolution: int) -> str:
    """Return a cfg of the same structure with fewer filters, but for those that detections need."""
    sections = at_resolution(parse(text), resolution)
    following = [kind for kind, _ in sections[1:]] + [""]
    for (kind, options), after in zip(sections, following, strict=True):
        if kind == "convolutional" and after not in ("yolo", "region"):
            old = int(options["filters"])
            new = min(old, max(8, old // divisor))
            if options.get("groups") == options["filters"]:
                options["groups"] = str(new)
            options["filters"] = str(new)
        if kind == "connected":
            options["output"] = str(int(options["output"]) // divisor)
    return cfg_text(sections)
