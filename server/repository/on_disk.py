"""Models on disk: their folders, which versions are served, and whether all of a pack is there.

At most one pack of a slot is loaded. A model with one served version at a time has one slot with the
model's name, whatever version is in it, so that its metrics go on when the next version replaces it. Where
several versions may be served at once, each has a slot NAME/VERSION.
"""

import asyncio
import errno
import os
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import xxhash

from models.errors import PackError, absent
from models.images.preprocess import read_labels
from models.packs.folders import is_model_name, versions
from models.packs.manifest import TOKENIZER
from models.packs.names import MANIFEST, MAX_SHAPES, SHAPE_FILES
from models.packs.pack import FILES, Pack, read_pack, read_tokenizer
from models.packs.records.spans import Span
from pipeline.execution.shielded import run_to_completion
from pipeline.profiles.profile_file import profile_name
from server.errors import AwayError, NotFoundError, shown
from server.repository.model_config import FILE, ModelConfig, read_model_config

#: A change of one of these files makes it another pack. The file of found plans is not among them, since
#: the service itself writes it.
PACK_FILES = (MANIFEST, *SHAPE_FILES, *FILES, TOKENIZER, *map(profile_name, range(MAX_SHAPES)))

#: Path, device, inode, size and last change in nanoseconds of a file; of each file that is there.
FileStatus = tuple[str, int, int, int, int]
Seen = tuple[FileStatus, ...]


def look(files: Iterable[Path]) -> Seen:
    """Return what is seen of ``files``; one that is not there, or without access, is left out."""
    seen = []
    for file in files:
        try:
            state = file.stat()
        except OSError:
            continue
        seen.append((str(file), state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns))
    return tuple(seen)


def look_at_pack(folder: Path) -> Seen:
    """Return what is seen of the pack in ``folder``, that of a version."""
    return look(folder / name for name in PACK_FILES)


def is_still(seen: Seen, file: Path) -> bool:
    """Return whether ``file`` is the one that was ``seen``."""
    now = look([file])
    return bool(now) and now[0] in seen


_LIMIT_SECONDS = 1.0


class Presence:
    """Asks the file system on one thread at a time, since a remote one may not answer for minutes."""

    def __init__(self, folder: Path, limit_seconds: float = _LIMIT_SECONDS) -> None:
        self._folder = folder
        self._limit_seconds = limit_seconds
        self._turn = asyncio.Lock()

    async def is_there(self) -> bool:
        """Return whether the folder is there; without an answer in time False."""
        return await self.has(is_folder)

    async def has(self, question: Callable[[Path], bool]) -> bool:
        """Return the answer of ``question``, which blocks, for the folder; without one in time False."""
        asking = asyncio.create_task(self._asked(question))
        try:
            done, _ = await asyncio.wait({asking}, timeout=self._limit_seconds)
            return any(answer.result() for answer in done)
        finally:
            asking.cancel()  # a question that waits for its turn ends; one that has begun goes on

    async def _asked(self, question: Callable[[Path], bool]) -> bool:
        async with self._turn:
            return await run_to_completion(asyncio.to_thread(question, self._folder))


def is_folder(path: Path) -> bool:
    """Return whether ``path`` is a folder; False also where the file system refuses to say. Blocks."""
    try:
        return path.is_dir()
    except OSError:  # the name is too long, or there is no access
        return False


def model_names(root: Path) -> list[str]:
    """Return the models in ``root``, by name: folders with folders of versions in them.

    A folder without access counts if its name could be a model's: then the log says that it cannot be
    served, where an operator would search in vain for a model that is silently missing.

    Raises:
        NotFoundError: there is no such folder.
    """
    if not root.is_dir():
        raise NotFoundError(f"repository {root}: no such folder")
    return sorted(path.name for path in root.iterdir() if is_model(root, path.name))


def is_model(root: Path, name: str) -> bool:
    """Return whether there is a model of that name in ``root``; looks only at its folder, and blocks."""
    try:
        folder = folder_of(root, name)
        return folder is not None and bool(versions(folder))
    except OSError:  # there is no access, as to lost+found, which is no model, or the disk fails
        return is_model_name(name)


#: What the system says of a path at which there is no folder.
_NO_FOLDER = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})


def folder_of(root: Path, name: str) -> Path | None:
    """Return the folder of ``root`` with that name; None: there is none, or it is hidden.

    Raises:
        OSError: the file system does not say.
    """
    if not name or name[0] == "." or "/" in name or "\0" in name:
        return None
    try:
        is_there = stat.S_ISDIR((root / name).stat().st_mode)
    except OSError as exc:
        if exc.errno not in _NO_FOLDER:
            raise
        is_there = False
    return root / name if is_there else None


@dataclass(frozen=True)
class Slot:
    """``name``: of the slot; ``model``: of the model; ``folder``: of the version that is served there.

    ``seen``: what was seen of its files before one was read, so that later changes are noticed.
    """

    name: str
    model: str
    folder: Path
    config: ModelConfig
    seen: Seen = field(repr=False)

    def is_as_seen(self) -> bool:
        """Return whether the files of the pack are still those that were seen; blocks."""
        return set(look_at_pack(self.folder)) <= set(self.seen)


def slots(root: Path, model: str, config: ModelConfig | None = None) -> list[Slot]:
    """Return the slots of ``model`` in the repository ``root``, lowest version first; blocks.

    ``config``: counts in place of its config.pbtxt.

    Raises:
        NotFoundError: no such model. AwayError: no repository. ModelConfigError: its config.pbtxt is wrong.
            PackError: no version of it is to be served. OSError: no access.
    """
    folder = folder_of(root, model)
    if folder is None:
        if not root.is_dir():
            raise AwayError(f"model {shown(model)}: repository {root}: no such folder")
        raise NotFoundError(f"model {shown(model)}: not in the repository")
    there = versions(folder)
    config = read_model_config(folder) if config is None else config
    beside = look([folder / FILE, *(folder / file for file in config.label_files.values())])
    if (
        folder / "manifest.json"
    ).exists():  # the folder itself is a pack, without a folder of a version
        return [Slot(model, model, folder, config, beside + look_at_pack(folder))]
    folders = _wanted(folder, there, config)
    several = config.policy.is_of_several
    return [
        Slot(
            f"{model}/{path.name}" if several else model,
            *(model, path, config),
            seen=beside + look_at_pack(path),
        )
        for path in folders
    ]


def _wanted(folder: Path, there: Sequence[Path], config: ModelConfig) -> list[Path]:
    """Return those of ``there``, the folders of versions in ``folder``, that are served."""
    if not there:
        reason = f"{folder}: no pack in it (a pack is NAME/VERSION with a manifest.json)"
        raise PackError(reason) from absent(folder / "1")
    # A version without a manifest is still being copied.
    begun = {int(path.name): path for path in there if (path / "manifest.json").exists()}
    if not begun:
        file = there[-1] / "manifest.json"
        raise PackError(f"{file}: No such file or directory") from absent(file)
    wanted = [begun[number] for number in config.policy.wanted(list(begun))]
    if not wanted:
        where = f"{folder / FILE}:{config.policy_line}"
        reason = f"{where}: version_policy: none of its versions is there"
        raise PackError(reason) from absent(folder / "1")
    return wanted


def missing_versions(present: Sequence[Slot]) -> dict[str, str]:
    """Return slots of versions that a model's configuration names and that are not there, and why not.

    ``present``: the slots of the model that are there (``slots``).
    """
    model, config = present[0].model, present[0].config
    if not config.policy.is_of_several:
        return {}
    there = {slot.folder.name for slot in present}
    where = f"{present[0].folder.parent / FILE}:{config.policy_line}: version_policy"
    return {
        f"{model}/{number}": f"{where}: version {number} is not there"
        for number in sorted(config.policy.named)
        if str(number) not in there
    }


def labelled(pack: Pack, slot: Slot) -> Pack:
    """Return ``pack`` with the labels that the configuration of its model names.

    Raises:
        PackError: an output that is no vector of scores, or more or fewer labels than it has.
        ModelError: a file of labels cannot be read.
    """
    for output, file in slot.config.label_files.items():
        pack = _with_labels(pack, output, slot.folder.parent / file)
    return pack


def _with_labels(pack: Pack, output: str, file: Path) -> Pack:
    recipe = pack.manifest.classification
    ports = {port.name: port for port in pack.manifest.outputs}
    if recipe is None or recipe.output != output:
        raise PackError(f"{file}: labels for {shown(output)}, no output of scores of the pack")
    labels = read_labels(file)
    classes = ports[output].shape[1]
    if len(labels) != classes:
        raise PackError(f"{file}: {len(labels)} labels for {classes} classes")
    named = replace(pack.manifest, classification=replace(recipe, labels=labels))
    return replace(pack, manifest=named)


_READ_BYTES = 1 << 20


def check_whole(folder: Path) -> None:
    """Check every byte of the weights in ``folder`` against the checksums of the manifest; blocks.

    A copy may have its full size before its last byte has come, and nothing says when it is done. So a pack
    that the server takes by itself is read once, as the first sweep would read it.

    Raises:
        PackError: bytes are not those of the manifest. OSError: no access.
    """
    pack = read_pack(folder)
    if pack.manifest.text is not None:
        read_tokenizer(pack)
    with pack.weights_path.open("rb", buffering=0) as file:
        shapes = (pack, *pack.others)
        spans = (span for shape in shapes for span in shape.manifest.spans)
        for span in {span.file_offset: span for span in spans}.values():
            if _checksum(file.fileno(), span) != span.checksum:
                end = span.file_offset + span.file_length
                raise PackError(
                    f"{pack.weights_path}: bytes [{span.file_offset}, {end}) are not those of the manifest"
                )
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _checksum(descriptor: int, span: Span) -> str:
    checksum, position = xxhash.xxh3_64(), span.file_offset
    end = position + span.file_length
    while position < end and (
        part := os.pread(descriptor, min(_READ_BYTES, end - position), position)
    ):
        checksum.update(part)
        position += len(part)
    return checksum.hexdigest()
