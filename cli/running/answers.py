"""What ``layerstream run`` makes of a model's outputs: labels, boxes, a mask, depth."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from cli.printing.output import print_json, print_table, say
from models.classification import ClassScore, top_classes
from models.depth import DepthMap, depth_of
from models.detection.boxes import Box, BoxLimits, find_boxes
from models.images.placement import Size
from models.packs.pack import Pack
from models.segmentation import Counted, Mask, NamedArea, classes_of
from models.sizes import format_size
from pipeline.energy import Energy
from pipeline.execution.errors import InputError
from pipeline.execution.given import Arrays
from pipeline.execution.statistics import SweepStatistics

if TYPE_CHECKING:
    from cli.running.repeats import Repeats

#: How many are printed by default.
LABELS, BOXES = 5, 20


@dataclass(frozen=True)
class Found:
    """What is kept of the outputs: dtypes and shapes by name, best labels, boxes, a mask, depth."""

    forms: Mapping[str, tuple[str, tuple[int, ...]]]
    best: Sequence[ClassScore]
    boxes: Sequence[Box] | None
    mask: Mask | None
    depth: DepthMap | None = None


@dataclass(frozen=True)
class Wish:
    """The parts of an answer that are wanted: so many labels, boxes within ``limits``."""

    labels: int
    limits: BoxLimits


@dataclass(frozen=True)
class Result:
    """One request: its model, the plan it ran in, what came out, how long it took and what energy.

    ``heuristic``: the plan was not searched for. ``statistics`` and ``energy`` are of the first answer;
    ``repeats`` of the warm ones behind it.
    """

    pack: Pack
    plan: Mapping[str, Any]
    heuristic: bool
    found: Found
    statistics: SweepStatistics
    energy: Energy
    repeats: "Repeats | None" = None


def found_in(pack: Pack, image: Size | None, wish: Wish, outputs: Arrays) -> Found:
    """Return what is wished of ``outputs`` for an image of that size; nothing of it is a view of them."""
    return Found(
        {name: (array.dtype.name, array.shape) for name, array in outputs.items()},
        _best_of(pack, outputs, wish.labels),
        _boxes_of(pack, outputs, image, wish.limits),
        _mask_of(pack, outputs, image),
        _depth_of(pack, outputs, image),
    )


def _best_of(pack: Pack, outputs: Arrays, count: int) -> list[ClassScore]:
    """Return the best labels, none where the model does not classify."""
    classification = pack.manifest.classification
    if classification is None:
        return []
    return top_classes(classification, outputs[classification.output], count)


def _boxes_of(
    pack: Pack, outputs: Arrays, image: Size | None, limits: BoxLimits
) -> list[Box] | None:
    """Return what a detector saw; None where the model is none.

    Without an image, boxes are in pixels of the network's input.
    """
    detection, preprocess = pack.manifest.detection, pack.manifest.preprocess
    if detection is None or preprocess is None:
        return None
    return find_boxes(outputs, detection, preprocess, image or preprocess.size, limits)


def _mask_of(pack: Pack, outputs: Arrays, image: Size | None) -> Mask | None:
    """Return the mask over an image of that size, or as the network sees it; None: the model makes none.

    Raises:
        InputError: its scores are no numbers.
    """
    segmentation, preprocess = pack.manifest.segmentation, pack.manifest.preprocess
    if segmentation is None or preprocess is None:
        return None
    classes = classes_of(segmentation, outputs[segmentation.output])
    if classes is None:
        raise InputError(f"{pack.folder}: output {segmentation.output!r} has NaN: no mask")
    if image is None:
        return Mask.of_network(segmentation, classes)
    return Mask.of_photograph(segmentation, classes, preprocess.placement(image, whole=True), image)


def _depth_of(pack: Pack, outputs: Arrays, image: Size | None) -> DepthMap | None:
    """Return depth over an image of that size, or as the network sees it; None: the model has none.

    Raises:
        InputError: it has numbers that are none.
    """
    depth, preprocess = pack.manifest.depth, pack.manifest.preprocess
    if depth is None or preprocess is None:
        return None
    values = depth_of(depth, outputs[depth.output])
    if values is None:
        raise InputError(f"{pack.folder}: output {depth.output!r} has NaN or infinite numbers")
    if image is None:
        return DepthMap.of_network(values)
    return DepthMap.of_photograph(values, preprocess.placement(image, whole=True), image)


def report(result: Result, shown_boxes: int, as_json: bool) -> None:
    """Print the answer: JSON with all boxes for programs, tables and sentences for people."""
    best, boxes, mask = result.found.best, result.found.boxes, result.found.mask
    areas = None if mask is None else _areas(mask)
    if as_json:
        document = _document(result, best)
        if boxes is not None:
            document["detections"] = [box.as_dict() for box in boxes]
        if areas is not None:
            document["classes"] = [area.as_dict() for area in areas]
        print_json(document)
        return
    name = result.pack.name
    if best:
        rows = ((i.label, f"{i.probability:.4f}", str(i.index)) for i in best)
        print_table(name, ("label", "probability", "index"), rows)
    if boxes is not None:
        _print_boxes(name, boxes, shown_boxes)
    if mask is not None and areas:
        pixels = mask.size[0] * mask.size[1]
        shares = ((each.label, f"{each.pixels / pixels:.1%}", str(each.index)) for each in areas)
        print_table(name, ("label", "of the image", "index"), shares)
    _print_figures(result)


def _areas(mask: Mask) -> list[NamedArea]:
    counted = Counted(mask)
    for band in mask.bands():
        counted.add(band)
    return counted.areas()


def _print_boxes(name: str, boxes: Sequence[Box], count: int) -> None:
    """Print the best ``count`` of ``boxes``, which are ordered by score."""
    if not boxes:
        say("no boxes found; --score-threshold lowers what counts as one")
        return
    columns = ("label", "score", "x_min", "y_min", "x_max", "y_max")
    print_table(name, columns, map(_row, boxes[:count]))
    more = len(boxes) - count
    if more > 0:
        say(f"and {more} more, of lower scores: --top-k {len(boxes)} prints all")


def _row(box: Box) -> tuple[str, ...]:
    return (box.label, *(f"{value:.2f}" for value in (box.score, *box.edges)))


def _document(result: Result, best: Sequence[ClassScore]) -> dict[str, Any]:
    statistics = result.statistics
    return {
        "model": result.pack.name,
        "plan": result.plan,
        "by_thumb": result.heuristic,
        "delay_ms": statistics.delay_seconds * 1e3,
        "stall_ms": statistics.stall_seconds * 1e3,
        "read_bytes": statistics.read_bytes,
        "energy_joules": result.energy.joules,
        "energy": result.energy.source,
        "outputs": {
            name: {"dtype": dtype, "shape": list(shape)}
            for name, (dtype, shape) in result.found.forms.items()
        },
        "predictions": [item.as_dict() for item in best],
        **({} if result.repeats is None else {"repeats": asdict(result.repeats)}),
    }


def _print_figures(result: Result) -> None:
    for name, (dtype, shape) in result.found.forms.items():
        say(f"{name}: {dtype} {list(shape)}")
    statistics, repeats, plan = result.statistics, result.repeats, result.plan
    weights, total = format_size(plan["weight_bytes"]), format_size(plan["total_bytes"])
    say(f"{plan['architecture']} in {total} of memory, {weights} of it weights")
    if result.heuristic:
        say(
            "a first plan, found without a search: `layerstream plan` with this budget finds the best one"
        )
    first = "" if repeats is None else "first answer: "
    delay, stall = statistics.delay_seconds * 1e3, statistics.stall_seconds * 1e3
    say(f"{first}{delay:.1f} ms, of which {stall:.1f} ms waiting for weights")
    if repeats is not None:
        for line in _repeats_lines(repeats):
            say(line)
    energy = result.energy
    if energy.joules is not None:
        say(f"energy: {energy.source}; {energy.joules:.3f} J")


def _repeats_lines(repeats: "Repeats") -> Iterator[str]:
    delay = repeats.delay_ms
    yield (
        f"{repeats.runs} more, warm: median {delay['median']:.1f} ms, from {delay['min']:.1f} to "
        f"{delay['max']:.1f} ms, 95 % within {delay['p95']:.1f} ms"
    )
    yield (
        f"in the median {repeats.stall_ms:.1f} ms waiting for weights, "
        f"{repeats.cpu_seconds * 1e3:.1f} ms of CPU, threads that spin after an answer included"
    )
    if repeats.energy_joules is not None:
        yield f"energy of these: median {repeats.energy_joules['median']:.3f} J"
