"""Tables in Markdown of ``bench pipeline`` beside seed 003's Table II."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.paper.reported import PaperNetwork

_MIB = 1 << 20
_HEAD = (
    *("architecture", "paper: memory", "paper: delay", "memory", "of the weights", "beside 2 Σs"),
    *("delay", "beside `pre`", "predicted", "CPU s"),
)
_PEERS = ("onnxruntime-resident", "openvino-resident")
_SHORT_HEAD = ("network", "weights", "ONNX Runtime", "OpenVINO")
_MARK = "<!-- {}: benchmarks.paper_table{} -->"


def tables(
    networks: Sequence[PaperNetwork], documents: Mapping[str, Mapping[str, Any]], plots: str
) -> str:
    """Return a section for each network that was measured; ``plots``: the folder as links see it."""
    sections = [
        "\n".join(_section(network, documents[network.name], plots))
        for network in networks
        if network.name in documents
    ]
    return "\n\n".join(sections)


def summary(networks: Sequence[PaperNetwork], documents: Mapping[str, Mapping[str, Any]]) -> str:
    """Return one table of delays: ``auto`` in parts of the weights beside peers that hold all of them."""
    rows = {
        name: {row["architecture"]: row for row in documents[name]["rows"]} for name in documents
    }
    measured = [network for network in networks if network.name in documents]
    shown = [label for label in rows[measured[0].name] if label.startswith("auto@")]
    parts = [f"in {label.removeprefix('auto@').replace('%', ' %')}" for label in shown]
    lines = [_line((*_SHORT_HEAD, *parts)), _line(["---"] + ["---:"] * (len(parts) + 3))]
    for network in measured:
        own, document = rows[network.name], documents[network.name]
        cells = [f"{own[name]['delay_ms']['median']:.0f} ms" for name in (*_PEERS, *shown)]
        title = f"{network.title} at {document['resolution']} px"
        lines.append(_line((title, f"{document['model_weight_bytes'] / _MIB:.0f} MiB", *cells)))
    return "\n".join(lines)


def insert(page: str, generated: str, mark: str) -> str:
    """Return ``page`` with ``generated`` between the two comments with ``mark``.

    Raises:
        ValueError: a mark is missing.
    """
    begin, end = _MARK.format("begin", mark), _MARK.format("end", mark)
    before, first, rest = page.partition(begin)
    _, last, after = rest.partition(end)
    if not first or not last:
        raise ValueError(f"no {begin} followed by {end}")
    return f"{before}{first}\n\n{generated}\n\n{last}{after}"


def _section(network: PaperNetwork, document: Mapping[str, Any], plots: str) -> Iterator[str]:
    machine = document["machine"]
    yield f"### {network.title} at {document['resolution']} px"
    yield ""
    yield (
        f"{document['model_weight_bytes'] / _MIB:.1f} MiB of weights, the largest layer "
        f"{document['largest_layer_bytes'] / _MIB:.1f} MiB; {machine['cpu']}, {machine['threads']} "
        f"threads, ONNX Runtime {machine['onnxruntime']}; medians of {document['iterations']} runs."
    )
    yield ""
    yield _line(_HEAD)
    yield _line(["---"] + ["---:"] * (len(_HEAD) - 1))
    for row in document["rows"]:
        yield _line(_cells(network, document, row))
    yield ""
    errors = [row["max_relative_error"] for row in document["rows"]]
    worst = max((error for error in errors if error is not None), default=None)
    ours = [row for row in document["rows"] if row["predicted_ms"] is not None]
    same = all(row["equal_to_pre"] for row in ours)
    equal = "bit-equal to `pre`" if same else "NOT all equal to `pre`"
    shown = "unknown" if worst is None else f"{worst:.0e}"
    yield f"Outputs of ours: {equal}; largest relative difference of any row from ONNX Runtime: {shown}."
    for note in document["notes"]:
        yield f"Note: {note}."
    yield ""
    name = f"{document['model']}-{document['resolution']}"
    yield f"![memory and delay]({plots}/{name}-memory-delay.svg)"
    if document["searches"]:
        yield f"![search for the smallest ring of least delay]({plots}/{name}-search.svg)"


def _cells(
    network: PaperNetwork, document: Mapping[str, Any], row: Mapping[str, Any]
) -> Sequence[str]:
    name, weights = row["architecture"], row["weight_bytes"]
    memory, delay = network.rows.get(name, (None, None))
    if name == "pre":
        memory = delay = 0.0
    twice = 2 * document["model_weight_bytes"]
    predicted = row["predicted_ms"]
    return (
        f"`{name}`",
        "" if memory is None else f"{memory:+.1f} %",
        "" if delay is None else f"{delay:+.1f} %",
        f"{weights / _MIB:.1f} MiB",
        f"{row['weight_percent']:.1f} %",
        f"{100 * (weights / twice - 1):+.1f} %",
        f"{row['delay_ms']['median']:.1f} ms",
        f"{100 * (row['ratio_to_pre'] - 1):+.1f} %",
        "" if predicted is None else f"{predicted:.1f} ms",
        f"{row['cpu_seconds']:.2f}",
    )


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
