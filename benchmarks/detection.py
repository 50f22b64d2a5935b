"""A detector whose weights stream, beside the same detector with all weights in memory, over HTTP.

Two servers hold the same pack, one with a small ring (``2s``), one preloaded (``pre``). Photographs go to
both in turns; what is compared is the delay of the sweep that each answer reports, and the answers.

Run as ``python -m benchmarks.detection IMAGE... [--network yolov4] [--resolution 608] [--requests 20]``.
"""

import argparse
import contextlib
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

from benchmarks.servers.served import ours, running
from models import photographs
from server.settings.sizes import parse_size

_ARCHITECTURES = ("2s", "pre")


def detect(base: str, network: str, image: Path) -> dict[str, Any]:
    """Return the server's answer for ``image``."""
    request = urllib.request.Request(f"{base}/v2/models/{network}:detect", image.read_bytes())
    with urllib.request.urlopen(request, timeout=120) as response:
        answer: dict[str, Any] = json.load(response)
    return answer


def weight_bytes(base: str, network: str) -> int:
    """Return the memory that the server accounts for weights: ring and resident spans."""
    with urllib.request.urlopen(f"{base}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    return sum(
        int(float(line.rpartition(" ")[2]))
        for line in lines
        if line.startswith("layerstream_memory_bytes")
        and f'"{network}"' in line
        and any(f'"{kind}"' in line for kind in ("ring", "resident"))
    )


def main() -> None:
    """Measure and print JSON; exit 1 when the figures or the answers are not as promised."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("images", nargs="*", type=Path)
    parser.add_argument("--network", default="yolov4")
    parser.add_argument("--resolution", default="608")
    parser.add_argument("--requests", type=int, default=20)
    options = parser.parse_args()
    images = options.images or sorted(photographs.FOLDER.glob("*.jpg"))
    with tempfile.TemporaryDirectory(dir=".") as folder:
        source, repository = Path(folder, "network.onnx"), Path(folder, "repository")
        build = ["zoo", "build", options.network, "--resolution", options.resolution]
        for arguments in (
            [*build, "-o", str(source)],
            ["compile", str(source), "-o", str(repository / options.network)],
        ):
            subprocess.run(
                [sys.executable, "-m", "cli", *arguments],
                check=True,
                stdout=subprocess.DEVNULL,
            )
        source.unlink()
        with contextlib.ExitStack() as stack:
            servers = {
                name: stack.enter_context(
                    running(ours(repository, "4GiB", "--architecture", name), "--port")
                ).base
                for name in _ARCHITECTURES
            }
            delays: dict[str, list[float]] = {name: [] for name in servers}
            boxes, different = 0, 0
            for image, _ in zip(itertools.cycle(images), range(options.requests), strict=False):
                answers = {name: detect(servers[name], options.network, image) for name in servers}
                for name, answer in answers.items():
                    delays[name].append(answer["delay_ms"])
                boxes += len(answers["2s"]["detections"])
                different += answers["2s"]["detections"] != answers["pre"]["detections"]
            weights_of = {
                name: weight_bytes(base, options.network) for name, base in servers.items()
            }
    medians = {name: statistics.median(delays[name]) for name in delays}
    result = {
        "network": options.network,
        "resolution": int(options.resolution),
        "images": [image.name for image in images],
        "requests": options.requests,
        "delay_ms": medians,
        "ratio_to_pre": medians["2s"] / medians["pre"],
        "weight_bytes": weights_of,
        "detections": boxes,
        "different_answers": different,
    }
    print(json.dumps(result, indent=2))
    kept = (
        weights_of["2s"] <= parse_size("16MiB") and result["ratio_to_pre"] <= 1.15 and not different
    )
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
