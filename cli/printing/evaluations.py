"""What packs scored on data sets, in words and tables."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from server.errors import few, shown

Result = Mapping[str, Any]
Table = tuple[str, tuple[str, ...], list[Sequence[str]]]

# Of a thousand classes nobody reads a whole matrix.
_MIX_UPS = 10


def _percent(part: float) -> str:
    return f"{100 * part:.2f} %"


def evaluated(result: Result) -> str:
    """Return a result in one line."""
    parts = [f"{name} {value}" for name, value in _figures(result)]
    agreement = result.get("agreement")
    if agreement:
        parts.append(f"agreement with {result.get('against')} {_agreed(agreement)}")
    if result.get("not_numbers"):
        parts.append(_no_numbers(result))
    return ", ".join([*parts, f"{result['samples']} samples"])


def _no_numbers(result: Result) -> str:
    return f"{len(result['not_numbers']):,} answers with NaN"


def facts(result: Result) -> Iterator[tuple[str, str]]:
    """Yield a result line by line."""
    yield "model", str(result["model"])
    yield "data set", f"{result['dataset']}, {result['data']}"
    broken = f", {len(result['broken'])} broken ones passed over" if result["broken"] else ""
    yield "samples", f"{result['samples']:,}{broken}"
    if result["not_numbers"]:
        yield "no numbers", f"{_no_numbers(result)}: {few(result['not_numbers'])}"
    yield from _figures(result)
    if result.get("left_out"):
        yield "left out", _left_out(result["left_out"])
    if result.get("agreement"):
        yield "agreement", f"{_agreed(result['agreement'])} with {result['against']}"
    yield "sweep", f"{result['sweep_ms']:.2f} ms in the middle, all weights in memory"


def _left_out(objects: Mapping[str, int]) -> str:
    named = few([f"{shown(name)} ({count:,})" for name, count in objects.items()])
    return f"{sum(objects.values()):,} objects of classes that the model does not have: {named}"


def _figures(result: Result) -> Iterator[tuple[str, str]]:
    for key, name in (("top1", "top-1"), ("top5", "top-5")):
        if isinstance(result.get(key), int | float):
            yield name, _percent(result[key])
    if isinstance(result.get("map50"), int | float):
        yield "mAP@0.5", f"{_percent(result['map50'])}{_over(result)}"


def _over(result: Result) -> str:
    """Return over which classes the mean is, where the data set has others."""
    left_out = len(result.get("left_out", ()))
    return (
        f" over {len(result['ap50'])} of {len(result['ap50']) + left_out} classes"
        if left_out
        else ""
    )


def _agreed(agreement: Mapping[str, Any]) -> str:
    if "map50" in agreement:
        return f"mAP@0.5 {_percent(agreement['map50'])}"
    return f"top-1 {_percent(agreement['top1'])} of {agreement['compared']:,}"


def tables(result: Result) -> Iterator[Table]:
    """Yield the precision of each class, and the classes that are taken for others most."""
    if "ap50" in result:
        rows = [(name, _percent(value)) for name, value in result["ap50"].items()]
        yield "Average precision at 0.5", ("class", "AP"), list(rows)
    mixed = [cell for cell in result.get("confusion", ()) if cell["truth"] != cell["answer"]]
    mixed = sorted(mixed, key=lambda cell: -cell["count"])[:_MIX_UPS]
    if mixed:
        cells = [(cell["truth"], cell["answer"], f"{cell['count']:,}") for cell in mixed]
        yield "Most often mixed up", ("is", "answered", "times"), list(cells)
