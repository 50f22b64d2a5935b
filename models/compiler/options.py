"""What a user decides of a pack before it is compiled."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image

from models.compiler.cutting.scratch import Measure
from models.detection.recipe import Detection
from models.errors import CompileError
from models.graphs.inputs import Warn
from models.images.preprocess import Preprocess
from models.packs.folders import is_model_name
from models.packs.pack import versions
from models.packs.records.ports import Scores
from models.packs.records.spans import Store
from models.packs.target import Target
from models.segmentation import Segmentation

#: Judges a finished pack before anyone can see it: its folder, and the source as it was read, as a file
#: that ONNX Runtime opens with all weights mapped. Raises to refuse it.
Accept = Callable[[Path, Path], None]


@dataclass(frozen=True)
class CompileOptions:
    """What the user decides.

    ``batch``: what unknown first dimensions become; None: 1. ``keep_inputs``: inputs with a value that stay
    inputs, though they look like weights. ``chunk_bytes``: None takes the default for
    the model's size. ``target``: None is this machine's CPU. ``calibrate``: makes pictures, with which the
    network becomes one of 8-bit integers; None: it stays as it is. ``measure``: what pieces allocate on the
    target's device; None: all of them run on the CPU. ``accept``: None: without a check. ``warn`` is told
    what a user should know. ``store``: how weights lie in the file.
    """

    version: int = 1
    batch: int | None = None
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    keep_inputs: tuple[str, ...] = ()
    chunk_bytes: int | None = None
    labels: tuple[str, ...] = ()
    preprocess: Preprocess | None = None
    detection: Detection | None = None
    segmentation: Segmentation | None = None
    scores: Scores | None = None
    force: bool = False
    target: Target | None = None
    calibrate: Callable[[], Iterable[Image.Image]] | None = None
    measure: Measure | None = None
    accept: Accept | None = None
    warn: Warn = lambda text: None
    store: Store = "fp32"


def check_options(destination: Path, options: CompileOptions) -> None:
    """Check what was decided for the pack ``destination``, REPOSITORY/NAME.

    Raises:
        CompileError: it cannot be; the message says what.
    """
    if not is_model_name(destination.name):
        raise CompileError(
            f"{destination}: {destination.name!r} is not a model name (letters, digits, ._-)"
        )
    if destination.name.isdecimal() and _is_model(destination.parent):
        raise CompileError(
            f"{destination}: {destination.parent.name} is a model; "
            f"-o {destination.parent} --version {destination.name} makes a version of it"
        )
    if options.version < 1:
        raise CompileError(f"{destination}: version {options.version} is not a positive integer")
    if options.store != "fp32" and options.target is not None and options.target.capability:
        raise CompileError(
            f"{destination}: --store {options.store}: a GPU reads weights as they are stored; "
            "without --store, or for the CPU"
        )
    if options.chunk_bytes is not None and options.chunk_bytes < 1:
        raise CompileError(f"{destination}: a chunk of {options.chunk_bytes} bytes holds nothing")


def _is_model(folder: Path) -> bool:
    """Return whether ``folder`` has versions with packs in them."""
    return folder.is_dir() and any((each / "manifest.json").exists() for each in versions(folder))
