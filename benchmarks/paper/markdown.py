"""Tables in Markdown of ``bench pipeline`` beside seed 003's Table II."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.paper.reported import PaperNetwork

_MIB = 1 << 20
_PEERS = ("onnxruntime-resident", "openvino-resident")
_TITLES = {"onnxruntime-resident": "ONNX Runtime", "openvino-resident": "OpenVINO"}
_SHORT_HEAD = ("network", "weights", "ONNX Runtime", "OpenVINO")
_MARK = "<!-- {}: benchmarks.paper_table{} -->"


def table(
    networks: Sequence[PaperNetwork], documents: Mapping[str, Mapping[str, Any]], plots: str
) -> str:
    """Return one table of all networks that were measured, with their plots.

    ``plots``: the folder as links see it. A cell has memory and delay, in percent more than those of `pre`.
    """
    measured = [network for network in networks if network.name in documents]
    first = documents[measured[0].name]
    names = [row["architecture"] for row in first["rows"] if row["architecture"] != "pre"]
    head = (
        "network, weights, delay of `pre`",
        "",
        *(_TITLES.get(name, f"`{name}`") for name in names),
    )
    lines = [_line(head), _line(["---", "---"] + ["---:"] * len(names))]
    for network in measured:
        lines += _rows(network, documents[network.name], names)
    lines += ["", *_notes([documents[network.name] for network in measured]), ""]
    for network in measured:
        document = documents[network.name]
        name = f"{document['model']}-{document['resolution']}"
        lines.append(f"![{network.title}: memory and delay]({plots}/{name}-memory-delay.svg)")
        if document["searches"]:
            lines.append(f"![search for the smallest ring]({plots}/{name}-search.svg)")
    return "\n".join(lines)


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


def _rows(
    network: PaperNetwork, document: Mapping[str, Any], names: Sequence[str]
) -> Iterator[str]:
    rows = {row["architecture"]: row for row in document["rows"]}
    title = f"{network.title} at {document['resolution']} px"
    weights = f"{document['model_weight_bytes'] / _MIB:.0f} MiB"
    delay = f"{rows['pre']['delay_ms']['median']:.0f} ms"
    paper = [network.rows.get(name) for name in names]
    yield _line((title, "paper", *("" if pair is None else _percent(*pair) for pair in paper)))
    own = [
        _percent(rows[name]["weight_percent"] - 100, 100 * (rows[name]["ratio_to_pre"] - 1))
        for name in names
    ]
    yield _line((f"{weights}, {delay}", "here", *own))


def _notes(documents: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    machines = {
        f"{each['machine']['cpu']}, {each['machine']['threads']} threads, ONNX Runtime "
        f"{each['machine']['onnxruntime']}; medians of {each['iterations']} runs"
        for each in documents
    }
    yield f"{'; '.join(sorted(machines))}."
    rows = [row for each in documents for row in each["rows"]]
    worst = max(row["max_relative_error"] for row in rows if row["max_relative_error"] is not None)
    same = all(row["equal_to_pre"] for row in rows if row["predicted_ms"] is not None)
    equal = "bit-equal to `pre`" if same else "NOT all equal to `pre`"
    yield f"Outputs of ours: {equal}; largest relative difference from ONNX Runtime: {worst:.0e}."
    for note in sorted({note for each in documents for note in each["notes"]}):
        yield f"Note: {note}."


def _percent(memory: float, delay: float) -> str:
    return f"{memory:+.1f}, {delay:+.1f}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
