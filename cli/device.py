"""``layerstream device``: what a device can do, found by trying."""

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.arguments import Json, open_named
from cli.printing.output import print_facts, print_json
from models.sizes import format_size
from pipeline.devices.base import Device
from pipeline.devices.cuda.driver import version
from pipeline.execution.errors import InputError

_PROBE_BYTES = 1 << 20


def device(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="cpu, cuda, cuda:1, ...")] = "cuda",
    folder: Annotated[
        Path, typer.Option(help="On the disk that holds the packs: a file is read there.")
    ] = Path(),
    as_json: Json = False,
) -> None:
    """Show a device, and the kinds of memory that it has. Its driver knows them."""
    opened = open_named(context, name)
    document: dict[str, Any] = {
        "device": name,
        "gpu": opened.gpu,
        "target": opened.target.isa,
        "threads": opened.threads,
        **cuda_figures(opened, folder),
    }
    if as_json:
        print_json(document)
        return
    kinds = document.pop("memory_kinds", {})
    print_facts((_name(key), _shown(key, value)) for key, value in document.items())
    print_facts((f"memory kind {kind}", reason or "works") for kind, reason in kinds.items())


def _name(key: str) -> str:
    return key.removesuffix("_bytes").replace("_", " ")


def _shown(key: str, value: Any) -> str:
    """Return a figure as people write it: 12.9 where CUDA says 12090."""
    if key.endswith("_bytes"):
        return format_size(value)
    if key.endswith("_version"):
        return version(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ".".join(map(str, value)) if isinstance(value, tuple) else str(value) or "none"


def cuda_figures(opened: Device, folder: Path) -> dict[str, Any]:
    """Return what the driver says of a GPU, and how the disk of ``folder`` reaches it; nothing of a CPU.

    Raises:
        InputError: no file can be written in ``folder``.
    """
    if not opened.gpu:
        return {}
    from pipeline.devices.cuda.device import CudaDevice
    from pipeline.devices.cuda.trials import probe_file_mapping, probe_kinds

    assert isinstance(opened, CudaDevice)
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix="layerstream-probe-") as file:
            file.write(bytes(range(256)) * (_PROBE_BYTES // 256))
            file.flush()
            kinds = probe_kinds(opened, Path(file.name))
            mapping = probe_file_mapping(opened, Path(file.name))
    except OSError as exc:
        raise InputError(f"{folder}: {exc.strerror or exc}") from exc
    free, total = opened.driver.memory_info()
    figures = asdict(opened.properties) | {"free_bytes": free, "total_bytes": total}
    return {
        **figures,
        "has_cublas": opened.driver.has_cublas,
        "file_mapping": mapping or "works",
        "memory_kinds": kinds,
    }
