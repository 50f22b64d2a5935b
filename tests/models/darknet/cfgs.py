"""Networks for tests: the real ones at other sizes."""

from collections.abc import Iterable

from tests.models.darknet.oracle_files import Options, Sections, parse
from tests.shared import shared

NAMES = (
    *("darknet19", "darknet53", "densenet201", "efficientnet_b0", "resnet152", "resnet50", "tiny"),
    *("vgg-16", "yolov2", "yolov2-tiny", "yolov2-voc", "yolov3", "yolov3-tiny", "yolov4"),
    *("yolov4-csp", "yolov4-p6", "yolov4-tiny"),
)
#: Networks that halve their input more than five times; others take multiples of 32.
LARGE_STRIDES = {"yolov4-p6": 64}


def real_text(name: str) -> str:
    """Return a cfg of Darknet's; the test that asks is skipped where it is not."""
    return shared("data", "darknet", f"{name}.cfg").read_text()


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
