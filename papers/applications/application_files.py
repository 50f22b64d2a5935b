"""Applications that people write: a TOML file of models, their partitions, and what runs at once.

A model is a pack, or layers written down. Docs and an example: docs/research/papers.md.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Protocol

from pydantic import BaseModel, ConfigDict, Field

from models.errors import ModelError
from models.network.windows import Window
from models.toml_files import read_recipe
from papers.applications.application import Application, Partition, one_by_one
from papers.cnn.layers import Cnn, CnnLayer, Edge, GeometryError, Shape

# What files of applications hold: models, layers, windows, partitions (docs/research/papers.md).

_MOST_LAYERS = 100_000
_MOST_WORKERS = 64
_MOST_SECONDS = 1e6
_MOST_PARAMETERS = 1 << 48
_Elements = Annotated[int, Field(ge=1, le=1 << 32)]
_Padding = Annotated[int, Field(ge=-(1 << 32), le=1 << 32)]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class WindowRecord(_Record):
    """A window in rows (models/network/windows.py): ``above`` is before them, ``below`` behind."""

    kernel: _Elements = 1
    stride: _Elements = 1
    above: _Padding = 0
    below: _Padding = 0
    dilation: _Elements = 1
    factor: _Elements = 1

    @property
    def as_window(self) -> Window:
        return Window(self.kernel, self.stride, self.dilation, self.above, self.below, self.factor)


class ReadRecord(_Record):
    """An input that is read otherwise: through a window of its own, or only so many channels of it."""

    layer: str
    window: WindowRecord | None = None
    channels: _Elements | None = None


class LayerRecord(WindowRecord):
    """A layer: its output as [channels, height, width], its window, and whose outputs it reads.

    ``reads``: None: the layer before it.
    """

    name: str = Field(min_length=1)
    operator: str = "layer"
    output: tuple[_Elements, _Elements, _Elements]
    reads: tuple[str | ReadRecord, ...] | None = None
    seconds: float = Field(0.0, ge=0, le=_MOST_SECONDS)
    parameters: int = Field(0, ge=0, le=_MOST_PARAMETERS)


class ModelRecord(_Record):
    """A model: a ``pack``, relative to the file, or ``layers``.

    ``partitions``: layers by name, ``a..b`` for those from one to another, lists for steps of several.
    ``workers``: of a pack so many partitions that run at once, cut where our planner would.
    """

    name: str = Field(min_length=1)
    pack: str | None = None
    layers: tuple[LayerRecord, ...] = Field((), max_length=_MOST_LAYERS)
    workers: int = Field(1, ge=1, le=_MOST_WORKERS)
    partitions: tuple[tuple[str | tuple[str, ...], ...], ...] = ()


class ApplicationRecord(_Record):
    """The file. ``together``: models, or partitions as ``MODEL/2``, that run at once."""

    name: str = "application"
    element_bytes: _Elements = 4
    parameter_bytes: _Elements = 4
    together: tuple[tuple[str, ...], ...] = ()
    model: tuple[ModelRecord, ...] = ()


def _check_heights(cnn: Cnn) -> None:
    """Refuse a layer whose height does not follow from what it reads.

    Raises:
        GeometryError: there is one; the message has both heights.
    """
    for edge in cnn.edges:
        _check(cnn, edge)


def _check(cnn: Cnn, edge: Edge) -> None:
    source, target = cnn.layers[edge.source], cnn.layers[edge.target]
    window, height = cnn.window(edge), source.output.height
    if window.reach >= height and window.before == window.behind == 0:
        return
    made = window.made(height)
    if made != target.output.height:
        raise GeometryError(
            f"{cnn.name}: layer {target.name[:60]!r} has a height of {target.output.height}, but its "
            f"window makes {made} of the {height} rows of {source.name[:60]!r}: correct "
            "output or window; below says how many rows are added, or cropped, at the end"
        )


#: Of all outputs of a model: by one row at a time each is a phase, and phases are counted one by one.
MOST_ROWS = 2_000_000
_MOST_DIGITS = 10


@dataclass(frozen=True)
class ApplicationFile:
    """What was read: ``packs[n]`` is where CNN n's pack lies; None: its layers are written down."""

    application: Application
    packs: tuple[Path | None, ...]


class Packs(Protocol):
    """The packs of an application, as the reader of its file needs them."""

    def cnn(self, pack: Path, name: str) -> Cnn:
        """Return the CNN of ``pack``, of the model ``name``."""

    def starts(self, name: str, workers: int) -> Sequence[int]:
        """Return the layers, ascending, before which to cut that model for so many ``workers``."""


def runs_at_once(path: Path) -> bool:
    """Return whether the file at ``path`` has partitions of a model that run at once.

    Raises:
        ModelError: it cannot be read.
    """
    record = read_recipe(path, ApplicationRecord)
    parted = {item.name for item in record.model if len(item.partitions) > 1}
    named = (
        [name if name in parted else name.rpartition("/")[0] for name in group]
        for group in record.together
    )
    workers = any(item.workers > 1 for item in record.model)
    return workers or any(parted.intersection(names) for names in named)


def read_application(path: Path, packs_of: Packs) -> ApplicationFile:
    """Read an application.

    Raises:
        ModelError: the file, or a model of it, is not right; the message names file and field. As
            ``packs_of``.
    """
    record = read_recipe(path, ApplicationRecord)
    packs = [None if item.pack is None else path.parent / item.pack for item in record.model]
    _check_packs(path, record, packs)
    try:
        cnns = [
            _written(item) if pack is None else packs_of.cnn(pack, item.name)
            for item, pack in zip(record.model, packs, strict=True)
        ]
        partitions = [
            partition
            for number, (cnn, item) in enumerate(zip(cnns, record.model, strict=True))
            for partition in _partitions(number, cnn, item, packs_of)
        ]
        application = Application(
            record.name,
            tuple(cnns),
            tuple(partitions),
            _together(record, partitions),
            record.element_bytes,
            record.parameter_bytes,
        )
    except (GeometryError, _FieldError) as exc:
        raise ModelError(f"{path}: {exc}") from exc
    except ModelError as exc:
        raise ModelError(f"{path}: {exc}") from exc
    return ApplicationFile(application, tuple(packs))


class _FieldError(ValueError):
    """A field says what cannot be; the message names it."""


def _check_packs(path: Path, record: ApplicationRecord, packs: Sequence[Path | None]) -> None:
    seen: set[Path] = set()
    for item, pack in zip(record.model, packs, strict=True):
        if (pack is None) == (not item.layers):
            said = "has neither pack nor layers" if pack is None else "has pack and layers"
            raise ModelError(f"{path}: model {item.name!r} {said}: give one of them")
        if item.workers > 1 and (pack is None or item.partitions):
            said = "layers written down" if pack is None else "partitions"
            raise ModelError(
                f"{path}: model {item.name!r} has workers and {said}: give one of them"
            )
        if pack is not None and pack.resolve() in seen:
            raise ModelError(f"{path}: model {item.name!r}: pack {item.pack} is there twice")
        if pack is not None:
            seen.add(pack.resolve())


def _written(item: ModelRecord) -> Cnn:
    rows = sum(layer.output[1] for layer in item.layers)
    if rows > MOST_ROWS:
        said = f"{item.name}: its outputs have {rows:,} rows together, more than {MOST_ROWS:,}"
        raise _FieldError(said)
    names = [layer.name for layer in item.layers]
    numbers = {name: number for number, name in enumerate(names)}
    edges = []
    for number, layer in enumerate(item.layers):
        reads = names[max(number - 1, 0) : number] if layer.reads is None else layer.reads
        for each in reads:
            read = ReadRecord(layer=each) if isinstance(each, str) else each
            if read.layer not in numbers:
                said = f"{item.name}: {layer.name!r} reads {read.layer!r}, which is no layer"
                raise _FieldError(said)
            window = None if read.window is None else read.window.as_window
            edges.append(Edge(numbers[read.layer], number, window, read.channels))
    layers = tuple(
        CnnLayer(
            each.name,
            each.operator,
            Shape(each.output[1], each.output[2], each.output[0]),
            each.as_window,
            each.seconds,
            each.parameters,
        )
        for each in item.layers
    )
    cnn = Cnn(item.name, layers, tuple(edges))
    _check_heights(cnn)
    return cnn


def _partitions(number: int, cnn: Cnn, item: ModelRecord, packs_of: Packs) -> Iterator[Partition]:
    if not item.partitions:
        starts = packs_of.starts(item.name, item.workers) if item.workers > 1 else ()
        for first, end in pairwise((0, *starts, len(cnn.layers))):
            yield one_by_one(number, range(first, end))
        return
    numbers = {layer.name: at for at, layer in enumerate(cnn.layers)}
    for names in item.partitions:
        steps: list[tuple[int, ...]] = []
        for name in names:
            if isinstance(name, str):
                steps += [(layer,) for layer in _span(cnn, numbers, name)]
            else:
                steps.append(tuple(_number(cnn, numbers, each) for each in name))
        yield Partition(number, tuple(steps))


def _span(cnn: Cnn, numbers: dict[str, int], name: str) -> range:
    """Return the layers that ``a..b`` or a name means."""
    if name in numbers or ".." not in name:
        first = _number(cnn, numbers, name)
        return range(first, first + 1)
    start, _, end = name.partition("..")
    return range(_number(cnn, numbers, start), _number(cnn, numbers, end) + 1)


def _number(cnn: Cnn, numbers: dict[str, int], name: str) -> int:
    if name not in numbers:
        raise _FieldError(f"{cnn.name}: partitions: there is no layer {name[:60]!r}")
    return numbers[name]


def _together(
    record: ApplicationRecord, partitions: Sequence[Partition]
) -> tuple[frozenset[int], ...]:
    """Return J: what the file says, and the partitions of each model with workers."""
    written = [_group(record, partitions, names) for names in record.together]
    with_workers = [
        frozenset(at for at, each in enumerate(partitions) if each.cnn == number)
        for number, item in enumerate(record.model)
        if item.workers > 1
    ]
    return (*written, *(group for group in with_workers if group not in written))


def _group(
    record: ApplicationRecord, partitions: Sequence[Partition], names: Sequence[str]
) -> frozenset[int]:
    """Return the partitions that ``names`` of models and partitions mean."""
    models = {item.name: number for number, item in enumerate(record.model)}
    found: set[int] = set()
    for name in names:
        model, _, part = (name, "", "") if name in models else name.rpartition("/")
        own = [at for at, item in enumerate(partitions) if item.cnn == models.get(model)]
        if part:
            count = int(part) if part.isdecimal() and len(part) < _MOST_DIGITS else 0
            own = own[count - 1 : count] if count else []
        if not own:
            raise _FieldError(f"together: {name[:60]!r} is no model, and no partition of one")
        found.update(own)
    return frozenset(found)
