"""Files of models to packs in one repository; what has not changed since is not compiled again.

A file in the folder of a model names the files and options that its pack was made of; while a pack is made,
it names those of the new one. The command compiles in a process of its own, whose memory is free again
before anything is served.
"""

import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence, Set
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import typer

from cli.printing.output import CommandFailure, tell
from cli.printing.sentences import serves_from, takes
from cli.process import NO_MEMORY
from cli.source_records import (
    Source,
    all_files,
    external_files_of,
    is_compiled_from,
    read_record,
    record_of,
    stats_of,
    write_record,
)
from models.atomic_folders import locked_folder
from models.packs.folders import SOURCES_FILE, find_pack, is_model_name, versions
from models.packs.target import host_isa
from models.sizes import format_size
from models.whole_files import check_writable
from pipeline.checking import Depth
from pipeline.execution.errors import InputError
from server.memory.process_memory import memory_limit

#: Options of ``compile`` that are files, and the ends of their names beside the model, as F.labels.txt.
RECIPES = {
    "labels": ".labels.txt",
    "preprocess": ".preprocess.toml",
    "detection": ".detection.toml",
    "segmentation": ".segmentation.toml",
    "embedding": ".embedding.toml",
}
#: Options of ``compile`` that are files as Hugging Face, timm and OpenCLIP call them, the first counts.
CONFIGS = {
    "image_config": (
        "preprocessor_config.json",
        "processor_config.json",
        "preprocess_cfg.json",
        "open_clip_config.json",
    ),
    "config": ("config.json",),
    "tokenizer": ("tokenizer.json",),
}
# The folder of graphs beside such files, as exporters for transformers.js write it.
_GRAPHS = "onnx"
#: The folder of packs next to the first file, of which all is ours; a hidden one has no model's name.
REPOSITORY = ".layerstream"
#: What it says of a file of which no pack could be made: the limit on memory, in bytes.
_LACKED = "lacked_bytes"
_DARKNET = (".cfg", ".weights")
_OOM_FIRST = "1000"
#: Memory of compiling beyond 1.2 times the file, with what this process holds: 64 to 78 MB were measured.
#: What the check takes for activations is known only of a network that was read.
_COMPILER_BYTES = 74 << 20
#: Pages of libraries with which compiling is about as fast as with all; it touches twice as many.
_LIBRARY_BYTES = 32 << 20
_PUTS_AWAY_SECONDS = 5.0


class FailedCommandError(Exception):
    """A command of ours failed with ``status``; standard error has the message, too."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def sources_of(
    paths: Sequence[Path], recipes: Mapping[str, Path], words: Sequence[str] = ()
) -> list[Source]:
    """Return the models that ``paths`` mean: F.onnx, CFG with WEIGHTS, folders of packs.

    ``recipes`` and ``words`` (other options of `compile`): for the one ONNX file; recipes that lie beside a
    file are its own.

    Raises:
        InputError: one is no such thing, or two have one name. PackError: a folder is no pack.
    """
    weights = [path for path in paths if path.suffix == ".weights"]
    by_name: dict[str, Source] = {}
    for path in paths:
        if path.suffix == ".weights" and path.exists():
            continue
        source = _source(path, weights, {each.stem for each in paths if each.suffix == ".cfg"})
        if not is_model_name(source.name):
            raise InputError(
                f"{path}: a model cannot be called {source.name!r}: letters, digits, . _ -"
            )
        if source.name in by_name:
            other = by_name[source.name].files[0]
            raise InputError(f"two models are called {source.name!r}: {other} and {path}")
        by_name[source.name] = source
    if weights:
        raise InputError(f"{weights[0]}: give the cfg file that it belongs to, before it")
    return [_with_options(source, recipes, words, len(by_name)) for source in by_name.values()]


def _source(path: Path, weights: list[Path], darknet: Set[str]) -> Source:
    """Return the model of ``path``; of Darknet what belongs to it is taken out of ``weights``.

    ``darknet``: names of cfg files; weights that are called as none of them belong to the next.
    """
    if path.is_dir():
        model = find_pack(path).resolve().parent
        if path.resolve() not in (model, find_pack(model).resolve()):
            raise InputError(f"{path}: not the latest version of {model.name}: give {model}")
        return Source(model.name, (model,))
    if not path.exists():
        raise InputError(f"{path}: no such file")
    if path.suffix == ".onnx":
        return Source(path.stem, (path,))
    if path.suffix not in _DARKNET:
        raise InputError(
            f"{path}: no kind of model that is known: F.onnx, CFG and WEIGHTS of Darknet, "
            "or a pack's folder"
        )
    own = [each for each in weights if each.stem == path.stem]
    own = own or [each for each in weights if each.stem not in darknet][:1]
    if not own and path.with_suffix(".weights").exists():
        return Source(path.stem, (path, path.with_suffix(".weights")))
    if not own:
        raise InputError(f"{path}: its weights are missing: give CFG WEIGHTS")
    weights.remove(own[0])
    return Source(path.stem, (path, own[0]))


def _with_options(
    source: Source, recipes: Mapping[str, Path], words: Sequence[str], models: int
) -> Source:
    file = source.files[0]
    options = [*(f"--{name}" for name in recipes), *words]
    if options and (models > 1 or file.suffix != ".onnx"):
        beside = ", ".join(f"{file.stem}{end}" for end in RECIPES.values())
        raise InputError(
            f"{options[0]} is for one ONNX file alone; of several models each has its own beside it "
            f"({beside}), or is compiled before, and its pack given"
        )
    if file.suffix != ".onnx":
        return source
    return Source(source.name, source.files, {**recipes_beside(file), **recipes}, tuple(words))


def recipes_beside(file: Path) -> dict[str, Path]:
    """Return the recipes that lie beside an ONNX ``file``, by the options of ``compile`` that name them."""
    beside = {name: file.with_name(file.stem + end) for name, end in RECIPES.items()}
    folders = [file.parent, *([file.parent.parent] if file.parent.name == _GRAPHS else [])]
    for option, names in CONFIGS.items():
        candidates = (folder / name for folder in folders for name in names)
        config = next((path for path in candidates if path.is_file()), None)
        if config is not None:
            beside[option] = config
    return {name: path for name, path in beside.items() if path.is_file()}


def check_sources(sources: Sequence[Source], repository: Path) -> None:
    """Check, before the first is compiled, that the files of all can be read, and their packs have room.

    Raises:
        InputError: one cannot be read, or ``repository`` has something else of its name.
    """
    for source in sources:
        folder = repository / source.name
        if source.is_pack:
            _check_link(source.files[0], folder)
            continue
        if read_record(folder) is None:
            _check_free(folder)
        for file in all_files(source, ()):
            try:
                file.open("rb").close()
            except OSError as exc:
                raise InputError(f"{file}: {exc.strerror or exc}") from exc


def is_new(source: Source, repository: Path) -> bool:
    """Return whether ``repository`` has no pack of ``source``, also none of what its file was before."""
    return not source.is_pack and read_record(repository / source.name) is None


def pack_of(source: Source, repository: Path, isa: str, check: Depth = "full") -> Path:
    """Return the folder in ``repository`` of ``source`` as a pack for ``isa``, which is made if it is new.

    ``check``: how a new pack is compared with its source, as of `compile`.

    Raises:
        InputError: the folder takes no pack, or has one there that is none of ours. MemoryError: compiling
            takes more than there is, now or the last time. FailedCommandError: it failed.
    """
    folder = repository / source.name
    if source.is_pack:
        _link(source.files[0], folder)
        return folder
    before = read_record(folder)
    if before is not None and is_compiled_from(before, source, isa) and versions(folder):
        beside = external_files_of(before)
        if before.get("files") != stats_of(
            source, beside
        ):  # the files were only touched: their content is the same
            write_record(folder, record_of(source, isa, beside))
        tell(f"{source.name}: {folder} is of {source.files[0]} as it is")
        return folder
    if before is None:
        _check_free(folder)
    elif is_compiled_from(before, source, isa):
        _check_memory(before, source, folder)
    new = [each for each in (folder, repository) if not each.exists()]
    _check_writable(repository)
    write_record(folder, None)  # until the pack is whole
    try:
        beside = _compile(source, folder, isa, check)
    except BaseException as exc:
        limit = memory_limit() if isinstance(exc, MemoryError) else None
        if limit is None or versions(folder):
            _put_away(new)
        else:
            write_record(folder, record_of(source, isa, ()) | {_LACKED: limit.limit_bytes})
        raise
    write_record(folder, record_of(source, isa, beside))
    return folder


def _check_memory(before: Mapping[str, Any], source: Source, folder: Path) -> None:
    """Refuse to compile again in a control group in which it was in vain.

    Raises:
        MemoryError: it has no more memory than the last time.
    """
    limit, lacked = memory_limit(), before.get(_LACKED, 0)
    if limit is not None and limit.limit_bytes <= lacked:
        raise MemoryError(
            f"{source.files[0]}: in a control group of {format_size(lacked)} it could not be compiled, so"
            " it is not tried again; give it more, or a pack that was compiled elsewhere, or remove"
            f" {folder}"
        )


def _put_away(new: Sequence[Path]) -> None:
    """Remove ``new`` folders that have nothing but the file of sources, a model's folder first."""
    with contextlib.suppress(OSError):
        for folder in new:
            if not versions(folder):
                (folder / SOURCES_FILE).unlink(missing_ok=True)
            folder.rmdir()


def _check_free(folder: Path) -> None:
    """Refuse a folder with packs that ``up`` has not made; an empty folder is taken."""
    is_used = folder.is_symlink() or (
        bool(versions(folder)) if folder.is_dir() else folder.exists()
    )
    if is_used:
        raise InputError(
            f"{folder}: something else is there; name another folder with --repository"
        )


def _check_writable(repository: Path) -> None:
    try:
        repository.mkdir(parents=True, exist_ok=True)
        check_writable(repository)
    except OSError as exc:
        raise InputError(
            f"{repository}: packs are kept there: {exc.strerror or exc}; "
            "name another folder with --repository"
        ) from exc


def _check_link(model: Path, folder: Path) -> bool:
    """Return whether ``folder``, in a repository, may become a link to ``model``, and is none yet.

    Raises:
        InputError: something else is there; links are replaced only where all links are ours.
    """
    if folder.resolve() == model.resolve():
        return False
    if folder.is_symlink() and folder.parent.name != REPOSITORY:
        raise InputError(
            f"{folder}: a link to {folder.readlink()}, which stays; name another folder with --repository"
        )
    if folder.exists() and not folder.is_symlink():
        raise InputError(
            f"{folder}: something else is there; name another folder with --repository"
        )
    return True


def _link(model: Path, folder: Path) -> None:
    """Make ``folder``, in a repository, a link to the folder ``model``, which stays where it is.

    Raises:
        InputError: as ``_check_link``, or no link can be written.
    """
    if _check_link(model, folder):
        _check_writable(folder.parent)
        folder.unlink(missing_ok=True)
        folder.symlink_to(model.resolve(), target_is_directory=True)


def _compile(source: Source, folder: Path, isa: str, check: Depth) -> tuple[Path, ...]:
    """Compile ``source``; return the files that its own refer to."""
    since = time.monotonic()
    tell(f"compiling {source.files[0]}{_slow_in_group(source)}")
    words: list[object] = ["-o", folder, "--target", isa, "--force", "--check", check, "--json"]
    for option, file in source.recipes.items():
        words += [f"--{option.replace('_', '-')}", file]
    words += source.words
    beside: tuple[Path, ...] = ()
    try:
        if source.files[0].suffix == ".onnx":
            document = json.loads(_run("compile", source.files[0], *words))
            beside = tuple(map(Path, document["source_files"][1:]))
        else:
            with locked_folder(folder.parent, source.name) as work:
                onnx = work / f"{source.name}.onnx"
                _run("import-darknet", *source.files, "-o", onnx)
                document = json.loads(_run("compile", onnx, *words))
    except ChildProcessError as exc:
        needed = format_size(_compiler_bytes(source))
        raise MemoryError(
            f"{source.files[0]}: the system ended its compilation (signal {exc}), mostly for want of memory"
            f", of which it takes about {needed}, and its check all activations of the network: compile it"
            " where there is as much, or with --no-check, and give its pack"
        ) from exc
    tell(
        f"{source.name}: compiled in {time.monotonic() - since:.1f} s, kept in {folder}; "
        f"{serves_from(document)}"
    )
    if document["costs"]:
        tell(f"{source.name}: requests take there {takes(document['costs'])}")
    return beside


def _slow_in_group(source: Source) -> str:
    """Return a warning where the control group has less memory than compiling takes."""
    limit, needed = memory_limit(), _compiler_bytes(source) + _LIBRARY_BYTES
    if limit is None or needed <= limit.limit_bytes:
        return ""
    return (
        f" in {format_size(limit.limit_bytes)}, which may be slow, or end for want of memory: it takes up"
        f" to {format_size(needed)} with its libraries; a pack that was compiled elsewhere starts at once"
    )


def _compiler_bytes(source: Source) -> int:
    """Return about how many bytes compiling takes without its check, with weights beside an ONNX file.

    Those are known by its name.
    """
    files = (each for path in source.files for each in path.parent.glob(f"{path.name}*"))
    return _COMPILER_BYTES + sum(file.stat().st_size for file in files) * 6 // 5


def isa_of(device: str) -> str:
    """Return what packs for ``device`` are compiled for.

    No device is opened here: processes that are forked from one that has could not use theirs.
    """
    if device == "cpu":
        return host_isa()
    try:
        printed = _run("device", device, "--folder", tempfile.gettempdir(), "--json")
    except FailedCommandError as exc:
        raise typer.Exit(exc.status) from exc
    return str(json.loads(printed)["target"])


def _run(*words: object) -> bytes:
    """Return what a command of ours prints, in a process of its own, which says itself why it fails.

    It is forked: what this process has imported already takes no memory twice, nor time.

    Raises:
        FailedCommandError: it failed. ChildProcessError: the system ended it, by the signal that is its
            argument.
        MemoryError: it would take more than there is.
    """
    printed_from, printed_to = os.pipe()
    process = get_context("fork").Process(target=_command, args=(printed_to, words))
    with os.fdopen(printed_from, "rb") as pipe:
        process.start()
        os.close(printed_to)
        try:
            # If memory of the control group runs out, the kernel shall end the compiler, not this process.
            with contextlib.suppress(OSError):
                Path(f"/proc/{process.pid}/oom_score_adj").write_text(_OOM_FIRST, "ascii")
            printed = pipe.read()
            process.join()
        finally:
            process.terminate()  # after an interruption; it then removes its unfinished folder
            process.join(_PUTS_AWAY_SECONDS)
            process.kill()
    status = process.exitcode or 0
    if status < 0:
        raise ChildProcessError(-status)
    if status == NO_MEMORY:
        raise MemoryError("compiling it takes more memory than there is, as standard error says")
    if status:
        raise FailedCommandError(printed.decode(errors="replace"), status)
    return printed


def _command(printed_to: int, words: Sequence[object]) -> None:
    """Run the command ``words`` in this process, and print to ``printed_to``; if it fails, only why."""
    from cli.process import main

    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # the parent process gets it, too, and ends this one
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    sys.argv = ["layerstream", *map(str, words)]
    with os.fdopen(printed_to, "w", encoding="utf-8") as sys.stdout:
        try:
            main()
        except CommandFailure as exc:
            sys.stdout.write(exc.message)
            raise
