"""Packs: what models are compiled to."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

StoredAs = Literal["fp32", "lossless", "bf16", "fp16", "int8"]


def compile(  # noqa: A001  as the command is called
    source: str | Path,
    destination: str | Path,
    *,
    batch: int | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    store: StoredAs = "fp32",
    version: int = 1,
    force: bool = False,
) -> Path:
    """Compile the ONNX file ``source`` to the pack ``destination``/``version`` and return its folder.

    The pack is run once beside ONNX Runtime on ``source`` before it appears. What a user should know is a
    warning. Labels and other settings of `layerstream compile` are that command's.

    Args:
        source: an ONNX file, weights beside it or in it.
        destination: REPOSITORY/NAME.
        batch: what an unknown first dimension becomes; None: 1.
        shapes: of inputs whose other dimensions are unknown, by name.
        store: how weights lie in the file; computed with float32.
        version: of the model, from 1 on.
        force: replace that version.

    Raises:
        ModelError: it cannot be compiled; the message says what and where. OSError: the disk refuses it.
    """
    # Onnx is not needed by a program that only runs models.
    from models.compiler import CompileOptions, compile_onnx
    from models.packs.target import host_target
    from models.progress import silent
    from pipeline.checking.accepting import checker

    def warn(text: str) -> None:
        warnings.warn(text, stacklevel=2)

    file, target = Path(source), host_target()
    options = CompileOptions(
        version=version,
        batch=batch,
        shapes={name: tuple(shape) for name, shape in (shapes or {}).items()},
        force=force,
        accept=checker(file, target, warn, silent),
        warn=warn,
        store=store,
    )
    return compile_onnx(file, Path(destination), options, silent)
