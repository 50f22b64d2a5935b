"""What of a model is served: its versions on disk, and which of them its configuration wants.

A slot is what is loaded at most once. A model of which one version is served at a time has one, called as
the model, whatever version is in it: its metrics go on when the next version takes its place. Where several
may be served at once, each has a slot NAME/VERSION.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from models.errors import PackError
from models.images.preprocess import read_labels
from models.packs.pack import Pack, versions
from server.errors import NotFoundError, shown
from server.repository.layout.model_config import FILE, ModelConfig, read_model_config
from server.repository.layout.model_folders import folder_of
from server.repository.layout.seen import Seen, look, look_at_pack
from server.repository.layout.versions import Specific, serves_several


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


def ignored_fields(config: ModelConfig) -> str:
    """Return which fields of ``config`` mean nothing here, with their lines; empty where there are none."""
    return ", ".join(f"{name} (line {line})" for name, line in config.ignored.items())
