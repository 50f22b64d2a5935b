"""Networks larger than the memory that you have, as functions of arrays.

    import layerstream

    layerstream.compile("model.onnx", "packs/model")
    with layerstream.open("packs/model", budget="64MiB") as model:
        outputs = model({"image": array})              # blocks
        outputs = await model.infer({"image": array})  # lets the event loop go on

Several models in one budget are planned together::

    with layerstream.Budget("256MiB") as budget:
        detector, classifier = budget.open("packs/detector", "packs/classifier")

What is served beside HTTP is `layerstream serve` (docs/server.md).
"""

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
from layerstream.packs import compile  # noqa: E402, A004

__all__ = ["Budget", "Model", "compile", "open"]
