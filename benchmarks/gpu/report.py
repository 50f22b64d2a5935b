"""The figures of a GPU as Markdown, ready to be quoted in docs/how-to/gpu.md."""

from collections.abc import Sequence
from typing import Any

_SIDES = ("ours", "nchw", "nhwc")


def markdown(document: dict[str, Any]) -> str:
    """Return the tables of ``document``, which ``python -m benchmarks.gpu`` writes as JSON too."""
    machine = document["machine"]
    lines = [
        f"## {machine['gpu']}, {document['date']}",
        "",
        f"Command: `{document['command']}`. Runtime CUDA {machine['runtime']}, CuPy "
        f"{machine['cupy']}, PyTorch {machine['torch'] or 'not installed'}.",
        "Memory kinds: "
        + ", ".join(
            f"{kind} {why or 'works'}" for kind, why in document.get("memory_kinds", {}).items()
        ),
        "",
    ]
    for name, table in document.get("kernels", {}).items():
        lines += _kernels(name, table)
    for name, row in document.get("preloaded", {}).items():
        lines += [
            f"{name}, preloaded: ours {row['ours']:.2f} ms, PyTorch eager {row['torch_nchw']:.2f} ms "
            f"(NCHW), {row['torch_nhwc']:.2f} ms (channels last): "
            f"{row['ratio_to_torch']:.2f} times the better, largest relative error {row['error']:.1e}.",
            "",
        ]
    for name, rows in document.get("rows", {}).items():
        lines += _rows(name, rows)
    for item in document.get("pipelines", []):
        lines += _pipelines(item)
    growth = document.get("growth")
    if growth:
        lines += [
            f"{growth['sweeps']} inferences left {growth['device_bytes']} bytes of device memory and "
            f"{growth['host_bytes']} of host memory behind.",
            "",
        ]
    lines += [f"Left out: {note}" for note in document["notes"]]
    return "\n".join(lines).rstrip() + "\n"


def _kernels(name: str, table: dict[str, Any]) -> list[str]:
    total = table["summary"]
    words = (
        f"{total['geometric_mean']:.2f} times cuDNN's speed (geometric mean of "
        f"{total['convolutions']:.0f}), the least {total['least']:.2f}."
        if total
        else "PyTorch is not installed, so there is nothing beside them."
    )
    rows = [
        (
            f"{row['channels']}x{row['height']}x{row['width']} -> {row['filters']}",
            "x".join(map(str, row["kernel"])) + f"/{row['strides'][0]}",
            *(f"{row['us'][side]:.1f}" if side in row["us"] else "-" for side in _SIDES),
            f"{row['gflops']:.0f}",
            "-" if row["speed"] is None else f"{row['speed']:.2f}",
        )
        for row in table["rows"]
    ]
    return [
        f"Convolutions of {name}, float32 without TF32: {words}",
        "",
        *_table(
            ("convolution", "kernel", "ours us", "cuDNN NCHW", "cuDNN NHWC", "GFLOP/s", "speed"),
            rows,
        ),
    ]


def _pipelines(item: dict[str, Any]) -> list[str]:
    rows = [
        (
            row["architecture"],
            f"{row['delay_ms']:.2f}",
            "-" if row["predicted_ms"] is None else f"{row['predicted_ms']:.2f}",
            f"{100 * (row['ratio_to_pre'] - 1):+.1f} %",
            str(row["weight_bytes"]),
            str(row["equation_bytes"]),
            str(row["planned_device_bytes"]),
            str(row["driver_bytes"]),
            f"{row['together_ms']:.2f}",
            "yes" if row["equal_to_pre"] else "NO",
        )
        for row in item["rows"]
    ]
    columns = (
        "architecture", "ms", "predicted", "beside pre", "weights", "equation", "device, planned",
        "driver's count", "all stages busy ms", "bits of pre",
    )  # fmt: skip
    speed = item["bytes_per_second"] / 1e9
    return [
        f"{item['model']} from a reader of {speed:.2f} GB/s ({item['why']}), memory {item['kind']}:",
        "",
        *_table(columns, rows),
    ]


def _rows(name: str, rows: Sequence[dict[str, Any]]) -> list[str]:
    columns = (
        "budget", "plan, MiB", "ms", "predicted", "regions", "launches", "MB read", "device, planned",
        "driver's count", "difference from pre",
    )  # fmt: skip
    table = [
        (
            row["budget"],
            f"{row['total_bytes'] / 2**20:.1f}",
            f"{row['delay_ms']:.2f}",
            "-" if row["predicted_ms"] is None else f"{row['predicted_ms']:.2f}",
            str(row["regions"]),
            str(row["steps"]),
            f"{row['read_bytes'] / 1e6:.1f}",
            str(row["planned_device_bytes"]),
            str(row["driver_bytes"]),
            f"{row['difference']:.1e}",
        )
        for row in rows
    ]
    return [f"{name} on rows:", "", *_table(columns, table)]


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [
        f"| {' | '.join(columns)} |",
        f"| {' | '.join('---' for _ in columns)} |",
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
    ]
