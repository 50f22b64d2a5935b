"""Networks larger than the memory that you have, as functions of arrays.

    import layerstream

    layerstream.compile("model.onnx", "packs/model")
    with layerstream.open("packs/model", budget="64MiB") as model:
        outputs = model({"image": array})              # blocks
        outputs = await model.infer({"image": array})  # lets the event loop go on

Several models in one budget are planned together::

    with layerstream.Budget("256MiB") as budget:
        detector, classifier = budget.open("packs/detector", "packs/classifier")

What is served beside HTTP is `layerstream serve` (docs/index.md).
"""

import warnings
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]


def _check_packages() -> None:
    """Check that the packages of this distribution are found, not others of the same names.

    Raises:
        ImportError: a package of the caller's own comes first.
    """
    for name in ("models", "loader", "pipeline", "server"):
        spec = find_spec(name)
        found = None if spec is None or spec.origin is None else Path(spec.origin).resolve()
        if found is not None and found.parent.parent != _ROOT:
            raise ImportError(
                f"layerstream needs its own package {name!r}, but {found.parent} comes first on sys.path; "
                "run layerstream in a process (or an environment) of its own, or ask its server over HTTP"
            )


_check_packages()

from layerstream.budget import Budget, Model, open  # noqa: E402, A004  after the check
from loader.errors import LoaderError  # noqa: E402
from models.errors import ModelError  # noqa: E402
from models.packs.names import Store  # noqa: E402
from models.sizes import lengths_of  # noqa: E402
from pipeline.budget.errors import RefusedError  # noqa: E402
from pipeline.devices.base import DeviceError  # noqa: E402
from pipeline.execution.errors import (  # noqa: E402
    DeadlineError,
    EngineClosedError,
    InputError,
)
from pipeline.planning.plan import PlanError  # noqa: E402

#: A TOML file, or what would be in it.
Recipe = str | Path | Mapping[str, object] | None

__all__ = [
    "Budget",
    "DeadlineError",
    "DeviceError",
    "EngineClosedError",
    "InputError",
    "LoaderError",
    "Model",
    "ModelError",
    "PlanError",
    "RefusedError",
    "compile",
    "open",
]


def compile(  # noqa: A001  as the command is called
    source: str | Path,
    destination: str | Path,
    *,
    batch: int | None = None,
    shapes: Mapping[str, Sequence[int] | Sequence[Sequence[int]]] | None = None,
    labels: str | Path | Sequence[str] = (),
    preprocess: Recipe = None,
    detection: Recipe = None,
    segmentation: Recipe = None,
    embedding: Recipe = None,
    store: Store = "fp32",
    target: str = "cpu",
    version: int = 1,
    force: bool = False,
) -> Path:
    """Compile the ONNX file ``source`` to the pack ``destination``/``version`` and return its folder.

    The pack is compared with ONNX Runtime on ``source`` before it appears. What a user should know is a
    warning. Other settings of `layerstream compile` are that command's.

    Args:
        source: an ONNX file, weights beside it or in it.
        destination: REPOSITORY/NAME.
        batch: what an unknown first dimension becomes; None: 1.
        shapes: of inputs whose other dimensions are unknown, by name, or lengths of dimensions; a pack of
            several shapes where there are several.
        labels: names of classes, or a file with one a line.
        preprocess: how a picture becomes the input: a TOML file, or a mapping of what would be in it.
        detection: the same of what outputs are boxes.
        segmentation: the same of which is a mask.
        embedding: the same of which is a vector.
        store: how weights lie in the file; computed with float32.
        target: "cpu": this machine's; "aarch64-generic", "cuda-sm72", ...: as `layerstream compile` takes.
        version: of the model, from 1 on.
        force: replace that version.

    Raises:
        ModelError: it cannot be compiled; the message says what and where. OSError: the disk refuses it.
    """
    # Onnx is not needed by a program that only runs models.
    from models.compiler import CompileOptions, compile_onnx
    from models.detection.recipe import Detection
    from models.embedding import Embedding
    from models.images.preprocess import Preprocess, read_labels
    from models.packs.target import named_target
    from models.progress import silent
    from models.segmentation import Segmentation
    from models.toml_files import recipe_of
    from pipeline.checking.checker import checker
    from pipeline.devices.find import device_measure

    def warn(text: str) -> None:
        warnings.warn(text, stacklevel=2)

    file, compiled_for = Path(source), named_target(target)
    options = CompileOptions(
        version=version,
        batch=batch,
        shapes={name: lengths_of(shape) for name, shape in (shapes or {}).items()},
        labels=read_labels(Path(labels)) if isinstance(labels, str | Path) else tuple(labels),
        preprocess=recipe_of(preprocess, Preprocess),
        detection=recipe_of(detection, Detection),
        segmentation=recipe_of(segmentation, Segmentation),
        embedding=recipe_of(embedding, Embedding),
        force=force,
        target=compiled_for,
        measure=device_measure(compiled_for),
        accept=checker(file, compiled_for, warn, silent, depth="full"),
        warn=warn,
        store=store,
    )
    return compile_onnx(file, Path(destination), options, silent)
