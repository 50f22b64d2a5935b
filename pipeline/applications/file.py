"""Applications that people write: a TOML file of models, their partitions, and what runs at once.

A model is a pack, or layers written down. Docs and an example: docs/applications.md.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from models.errors import ModelError
from models.geometry.cnn import Cnn, Edge, GeometryError, Layer, Shape
from models.recipe_files import read_recipe
from pipeline.applications.application import Application, Partition
from pipeline.applications.file_records import ApplicationRecord, ModelRecord, ReadRecord

#: Of all outputs of a model: by one row at a time each is a phase, and phases are counted one by one.
MOST_ROWS = 2_000_000
_MOST_DIGITS = 10


@dataclass(frozen=True)
class ApplicationFile:
    """What was read: ``packs[n]`` is where CNN n's pack lies; None: its layers are written down."""

    application: Application
    packs: tuple[Path | None, ...]


def read_application(path: Path, cnn_of: Callable[[Path, str], Cnn]) -> ApplicationFile:
    """Read an application; ``cnn_of`` makes a CNN of a pack's path and the name of the model.

    Raises:
        ModelError: the file, or a model of it, is not right; the message names file and field. As
            ``cnn_of``.
    """
    record = read_recipe(path, ApplicationRecord)
    packs = [None if item.pack is None else path.parent / item.pack for item in record.model]
    _check_packs(path, record, packs)
    try:
        cnns = [
            _written(item) if pack is None else cnn_of(pack, item.name)
            for item, pack in zip(record.model, packs, strict=True)
        ]
        partitions = [
            partition
            for number, (cnn, item) in enumerate(zip(cnns, record.model, strict=True))
            for partition in _partitions(number, cnn, item)
        ]
        application = Application(
            record.name,
            tuple(cnns),
            tuple(partitions),
            tuple(_group(record, partitions, names) for names in record.together),
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
        Layer(
            each.name,
            each.operator,
            Shape(each.output[1], each.output[2], each.output[0]),
            each.as_window,
            each.seconds,
            each.parameters,
        )
        for each in item.layers
    )
    return Cnn(item.name, layers, tuple(edges))


def _partitions(number: int, cnn: Cnn, item: ModelRecord) -> Iterator[Partition]:
    if not item.partitions:
        yield Partition(number, tuple((layer,) for layer in range(len(cnn.layers))))
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
