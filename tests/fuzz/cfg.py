"""Fuzz the Darknet importer: ``python -m tests.fuzz.cfg [seconds] [first example] [--minutes N]``.

Each example damages a cfg, as text or option by option, reads it, and builds its network and, when that is
small, its ONNX graph. The importer may refuse it with DarknetError; what it accepts must be sound.
Anything else, a minute, or 2 GiB ends the run with the example's number.
"""

import contextlib
import random
import resource
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import onnx

from models.darknet.cfg import DarknetError, read_cfg
from models.darknet.layers import DarknetNetwork
from models.darknet.network import build_network
from models.darknet.skeleton import skeleton
from models.graphs.onnx_writer import declared
from tests.fuzz.pack import change_bytes, chosen_run, run_examples
from tests.models.darknet.cfgs import cfg_text
from tests.models.darknet.oracle import Options, Sections
from tests.models.darknet.random_cfg import RandomCfg

_SECONDS = 60
_BYTES = 2 << 30
_SMALL = 1 << 20

_VALUES = (
    *("", "0", "1", "-1", "2", "3", "7", "64", "1000", "65536", "1000000000", "2147483647"),
    *("2147483648", "4294967297", "-2147483649", "9" * 30, "9" * 5000, "1" + ",1" * 3000),
    *("nan", "inf", "-inf", "1e9", "1e400", "-0", "+5", "0x10", "1_000", "1.5", "00"),
    *("\u0663", "\u00b2", "\u202e", "\x1b[0m", "\0", "\ud7ff", "é" * 300, "=", "#", "[net]", "x"),
    *(",", "1,", ",1", "1,,2", "-1,-2", "0,1,2", "-1,-1,-1", "5;6", "1 2"),
    *("leaky", "mish", "nothing", "none", "softmax", "per_channel", "letterbox"),
)  # fmt: skip
_KEYS = (
    *("width", "height", "channels", "filters", "size", "stride", "stride_x", "stride_y", "pad"),
    *("padding", "dilation", "groups", "group_id", "activation", "batch_normalize", "layers"),
    *("from", "weights_type", "weights_normalization", "maxpool_depth", "out_channels", "output"),
    *("anchors", "mask", "num", "classes", "coords", "softmax", "new_coords", "scale_x_y", "scale"),
    *(
        "crop_width",
        "crop_height",
        "noadjust",
        "temperature",
        "scale_wh",
        "reverse",
        "antialiasing",
    ),
    *(
        "share_index",
        "binary",
        "xnor",
        "flipped",
        "batch",
        "momentum",
        "nms_kind",
        "beta_nms",
        "",
        "é",
    ),
)
_KINDS = (
    *("net", "network", "convolutional", "conv", "connected", "maxpool", "avgpool", "route", "shortcut"),
    *("upsample", "reorg", "reorg3d", "crop", "scale_channels", "sam", "softmax", "yolo", "region"),
    *("dropout", "cost", "crnn", "lstm", "batchnorm", "activation", "Gaussian_yolo", "", "]", "[", "NET"),
)  # fmt: skip


def attempt(path: Path) -> bool:
    """Read the cfg in ``path`` and build what it describes; return whether it was accepted."""
    try:
        network = build_network(read_cfg(path), str(path))
        if is_small(network):
            check_graph(network)
    except DarknetError as exc:
        if not str(exc).isprintable() or str(path) not in str(exc) or len(str(exc)) > 1000:
            raise AssertionError(f"not one short line that names the file: {str(exc)!r}") from exc
        return False
    for layer in network.layers:
        if min(layer.shape) < 1:
            raise AssertionError(f"layer {layer.index} has the shape {layer.shape}")
        if any(not -1 <= index < layer.index for index in layer.inputs):
            raise AssertionError(f"layer {layer.index} reads {layer.inputs}")
    return True


def elements(shape: tuple[int, ...]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size


def is_small(network: DarknetNetwork) -> bool:
    shapes: list[tuple[int, ...]] = [layer.shape for layer in network.layers]
    shapes += [array.shape for layer in network.layers for array in layer.arrays]
    return len(network.layers) < 100 and sum(map(elements, shapes)) < _SMALL


def check_graph(network: DarknetNetwork) -> None:
    """Check that the graph is sound, declares the network's weights, and has its outputs."""
    model = skeleton(network, "fuzz")
    arrays = {array.name: array.shape for layer in network.layers for array in layer.arrays}
    if declared(model) != arrays:
        raise AssertionError(f"{declared(model)} is not {arrays}")
    if len(model.graph.output) != len(network.outputs):
        raise AssertionError(f"{len(model.graph.output)} outputs are not {network.outputs}")
    inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    for value, index in zip(inferred.graph.output, network.outputs, strict=True):
        shape = tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        if elements(shape) != elements(network.layers[index].shape):
            raise AssertionError(f"output {value.name!r} has the shape {shape}")


def change_sections(sections: Sections, rng: random.Random) -> None:
    """Remove, repeat, move or rename a section, or change its options."""
    at = rng.randrange(len(sections))
    kind, options = sections[at]
    match rng.randrange(10):
        case 0 if len(sections) > 1:
            del sections[at]
        case 1:
            sections.insert(rng.randrange(len(sections) + 1), (kind, dict(options)))
        case 2:
            sections[at] = (rng.choice(_KINDS), options)
        case 3:
            sections.insert(at + 1, (rng.choice(_KINDS), {}))
        case _:
            change_options(options, rng)


def change_options(options: Options, rng: random.Random) -> None:
    """Set, nudge, add, rename or remove an option."""
    key = rng.choice([*options] or ["filters"])
    match rng.randrange(6):
        case 0:
            options[key] = rng.choice(_VALUES)
        case 1:
            options[rng.choice(_KEYS)] = rng.choice(_VALUES)
        case 2:
            options.pop(key, None)
        case 3:
            options[rng.choice(_KEYS)] = options.pop(key, "1")
        case _:
            parts = options.get(key, "1").split(",")
            nudged = [moved(part, rng.choice((-2, -1, 1, 2))) for part in parts]
            options[key] = ",".join(nudged)


def moved(text: str, distance: int) -> str:
    """Return the number ``text`` moved; what is none stays."""
    digits = text.removeprefix("-")
    return str(int(text) + distance) if digits.isdecimal() and len(digits) < 30 else text


def disguised(text: str, rng: random.Random) -> str:
    """Return the same cfg as another hand would write it."""
    end = rng.choice(("\n", "\r\n", "\n\n"))
    lines = [line.replace("=", rng.choice(("=", " = ", "\t=")), 1) for line in text.split("\n")]
    if rng.random() < 0.3:
        lines.insert(rng.randrange(len(lines)), rng.choice(("# a comment", "; =[", " \t")))
    return rng.choice(("", "\ufeff")) + end.join(lines)


class CfgFuzzer:
    """Damages cfgs in ``folder``; example ``number`` is always the same."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "n.cfg"

    def run(self, number: int) -> bool:
        """Damage and read; return whether it was accepted."""
        rng = random.Random(number)
        sections = RandomCfg(rng.randrange(1 << 32), layers=rng.choice((3, 8, 30))).sections
        for _ in range(rng.choice((0, 1, 1, 2, 3))):
            change_sections(sections, rng)
        data = disguised(cfg_text(sections), rng).encode()
        if rng.random() < 0.2:
            data = change_bytes(data, rng)
        elif rng.random() < 0.02:
            data = rng.randbytes(rng.randrange(2000))
        self._path.write_bytes(data)
        return attempt(self._path)


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """Let an example that takes too long or too much memory fail."""

    def late(_signal: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"an example took {_SECONDS} s")

    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + _BYTES
    handler = signal.signal(signal.SIGALRM, late)
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)


def main(arguments: list[str]) -> int:
    seconds, first = chosen_run(arguments)
    with tempfile.TemporaryDirectory() as name, bounded():
        fuzzer = CfgFuzzer(Path(name))

        def run(number: int) -> bool:
            signal.alarm(_SECONDS)
            return fuzzer.run(number)

        return run_examples(run, seconds, first)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
