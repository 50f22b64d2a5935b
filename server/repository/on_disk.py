"""What of models is on disk: their folders, which versions are served, and whether all of a pack is there.

A slot is what is loaded at most once. A model of which one version is served at a time has one, called as
the model, whatever version is in it: its metrics go on when the next version takes its place. Where several
may be served at once, each has a slot NAME/VERSION.
"""

import asyncio
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import xxhash

from models.errors import PackError
from models.images.preprocess import read_labels
from models.packs.folders import is_model_name
from models.packs.pack import FILES, Pack, read_pack, versions
from models.packs.records.spans import Span
from server.errors import NotFoundError, shown
from server.repository.model_config import (
    FILE,
    ModelConfig,
    Specific,
    read_model_config,
    serves_several,
)
from server.requests.uninterrupted import to_its_end

#: What makes a pack what it is. Plans that were found are not among them: the service writes them itself.
PACK_FILES = ("manifest.json", *FILES, "profile.json")

#: Of each file that is there: its path, device, inode, size, nanoseconds of its last change.
Seen = tuple[tuple[str, int, int, int, int], ...]


def look(files: Iterable[Path]) -> Seen:
    """Return what is seen of ``files``; one that is not there, or that nobody may look at, is left out."""
    found = []
    for file in files:
        try:
            state = file.stat()
        except OSError:
            continue
        found.append((str(file), state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns))
    return tuple(found)


def look_at_pack(folder: Path) -> Seen:
    """Return what is seen of the pack in ``folder``, a version's."""
    return look(folder / name for name in PACK_FILES)


def is_still(seen: Seen, file: Path) -> bool:
    """Return whether ``file`` is the one that was ``seen``."""
    now = look([file])
    return bool(now) and now[0] in seen


_LIMIT_SECONDS = 1.0


class Presence:
    """Asks the file system, by one thread at a time: one that is far away may not answer for minutes."""

    def __init__(self, folder: Path, limit_seconds: float = _LIMIT_SECONDS) -> None:
        self._folder = folder
        self._limit_seconds = limit_seconds
        self._turn = asyncio.Lock()

    async def is_there(self) -> bool:
        """Return whether the folder is there; no answer in time is no."""
        return await self.has(is_folder)

    async def has(self, question: Callable[[Path], bool]) -> bool:
        """Return what ``question``, which blocks, says of the folder; no answer in time is no."""
        asking = asyncio.create_task(self._asked(question))
        try:
            done, _ = await asyncio.wait({asking}, timeout=self._limit_seconds)
            return any(answer.result() for answer in done)
        finally:
            asking.cancel()  # who is asked goes on to the end; who has not had the turn leaves the line

    async def _asked(self, question: Callable[[Path], bool]) -> bool:
        async with self._turn:
            return await to_its_end(asyncio.to_thread(question, self._folder))


def is_folder(path: Path) -> bool:
    """Return whether ``path`` is a folder, as far as the file system says; blocks."""
    try:
        return path.is_dir()
    except OSError:  # a name longer than it has, or nobody may look
        return False


def model_names(root: Path) -> list[str]:
    """Return the models in ``root``, by name: folders with versions in them, whatever these hold.

    One that may not be looked into counts where its name could be a model's: that it cannot be served is
    said, where a model that is silently missing would be looked for in vain.

    Raises:
        NotFoundError: there is no such folder.
    """
    if not root.is_dir():
        raise NotFoundError(f"repository {root}: no such folder")
    return sorted(path.name for path in root.iterdir() if is_model(root, path.name))


def is_model(root: Path, name: str) -> bool:
    """Return whether there is a model of that name in ``root``; looks at its folder alone, and blocks."""
    folder = folder_of(root, name)
    return folder is not None and _has_versions(folder)


def folder_of(root: Path, name: str) -> Path | None:
    """Return the folder of ``root`` with that name; None: there is none, or it is hidden."""
    if not name or name[0] == "." or "/" in name or "\0" in name:
        return None
    return root / name if is_folder(root / name) else None


def _has_versions(folder: Path) -> bool:
    try:
        return bool(versions(folder))
    except OSError:  # a disk has lost+found, too
        return is_model_name(folder.name)


@dataclass(frozen=True)
class Slot:
    """``name``: of the slot; ``model``: of the model; ``folder``: of the version that is served there.

    ``seen``: of its files before any was read, so that what changes afterwards is seen, too.
    """

    name: str
    model: str
    folder: Path
    config: ModelConfig
    seen: Seen = field(repr=False)

    def is_as_seen(self) -> bool:
        """Return whether the files of the pack are still those that were seen; asks the disk."""
        return set(look_at_pack(self.folder)) <= set(self.seen)


@dataclass(frozen=True)
class Missing:
    """A version that the configuration of ``model`` names and that is not there; ``name``: of its slot."""

    name: str
    model: str
    version: str
    why: str


def slots(root: Path, model: str, config: ModelConfig | None = None) -> list[Slot]:
    """Return what is served of ``model`` in the repository ``root``, lowest version first; blocks.

    ``config``: what counts in place of its config.pbtxt.

    Raises:
        NotFoundError: no such model. ModelConfigError: its config.pbtxt. PackError: no version of it is to
            be served. OSError: no access.
    """
    folder = folder_of(root, model)
    if folder is None:
        raise NotFoundError(f"model {shown(model)}: not in the repository")
    there = versions(folder)
    config = read_model_config(folder) if config is None else config
    beside = look([folder / FILE, *(folder / file for file in config.label_files.values())])
    if (folder / "manifest.json").exists():  # a pack as such, without a folder for its version
        return [Slot(model, model, folder, config, beside + look_at_pack(folder))]
    found = _wanted(folder, there, config)
    several = serves_several(config.policy)
    return [
        Slot(
            f"{model}/{path.name}" if several else model,
            *(model, path, config),
            seen=beside + look_at_pack(path),
        )
        for path in found
    ]


def _wanted(folder: Path, there: Sequence[Path], config: ModelConfig) -> list[Path]:
    """Return those of ``there``, the folders of versions in ``folder``, that are served."""
    if not there:
        raise PackError(f"{folder}: no pack in it (a pack is NAME/VERSION with a manifest.json)")
    # One without a manifest is being copied there.
    begun = {int(path.name): path for path in there if (path / "manifest.json").exists()}
    if not begun:
        raise PackError(f"{there[-1] / 'manifest.json'}: No such file or directory")
    wanted = [begun[number] for number in config.policy.wanted(list(begun))]
    if not wanted:
        where = f"{folder / FILE}:{config.policy_line}"
        raise PackError(f"{where}: version_policy: none of its versions is there")
    return wanted


def missing_versions(found: Sequence[Slot]) -> dict[str, Missing]:
    """Return what is not there of the versions that a model's configuration names, by slot.

    ``found``: what is there (``slots``).
    """
    model, config = found[0].model, found[0].config
    if not isinstance(config.policy, Specific) or not serves_several(config.policy):
        return {}
    there = {slot.folder.name for slot in found}
    where = f"{found[0].folder.parent / FILE}:{config.policy_line}: version_policy"
    return {
        f"{model}/{number}": Missing(
            f"{model}/{number}", model, str(number), f"{where}: version {number} is not there"
        )
        for number in sorted(config.policy.numbers)
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
    known = pack.manifest.classification
    ports = {port.name: port for port in pack.manifest.outputs}
    if known is None or known.output != output:
        raise PackError(f"{file}: labels for {shown(output)}, no output of scores of the pack")
    labels = read_labels(file)
    classes = ports[output].shape[1]
    if len(labels) != classes:
        raise PackError(f"{file}: {len(labels)} labels for {classes} classes")
    named = {"classification": replace(known, labels=labels)}
    return replace(pack, manifest=pack.manifest.model_copy(update=named))


_READ_BYTES = 1 << 20


def check_whole(folder: Path) -> None:
    """Check that every byte of the weights in ``folder`` is what the manifest says; blocks meanwhile.

    A copy may have its full size before its last byte, and nobody says when it is done. So what is taken
    without being asked for is read once, as the first sweep would.

    Raises:
        PackError: something is not as the manifest says. OSError: no access.
    """
    pack = read_pack(folder)
    with pack.weights_path.open("rb", buffering=0) as file:
        for span in {span.file_offset: span for span in pack.manifest.spans}.values():
            if _checksum(file.fileno(), span) != span.checksum:
                end = span.file_offset + span.file_length
                raise PackError(
                    f"{pack.weights_path}: bytes [{span.file_offset}, {end}) are not those of the manifest"
                )
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _checksum(descriptor: int, span: Span) -> str:
    made, position = xxhash.xxh3_64(), span.file_offset
    end = position + span.file_length
    while position < end and (
        part := os.pread(descriptor, min(_READ_BYTES, end - position), position)
    ):
        made.update(part)
        position += len(part)
    return made.hexdigest()
