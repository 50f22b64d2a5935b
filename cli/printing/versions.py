"""``layerstream --version``: of the distribution, and of what its results depend on."""

import platform


def versions() -> str:
    """Return one line for people and for reports of faults; nothing that it names is imported."""
    runtime = _version("onnxruntime")
    return (
        f"layerstream {own_version()} (Python {platform.python_version()}, ONNX Runtime {runtime})"
    )


def own_version() -> str:
    """Return the version of this Layerstream."""
    return _version("layerstream")


def _version(distribution: str) -> str:
    from importlib import metadata  # nothing but a version needs it, and it takes long to import

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"
