"""What is left of the capacity when three times as many requests come as can be answered.

Capacity: 8 clients that send when they have their answer. Then requests come at random times (Poisson) at
1 x and at 3 x that rate, and once more at 3 x with ``parameters.timeout``, where the body can carry it.
Cases: ``tiny`` 16 numbers as JSON, ``photograph`` a JPEG to ResNet-18, ``tensor`` the same as 3 MB of JSON.

Run as ``python -m benchmarks.overload [--cases tiny,photograph,tensor] [--seconds 15] [--clients 8]``.
"""

import argparse
import io
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image

from benchmarks.load.child import LoadProcess
from benchmarks.load.messages import request_bytes
from benchmarks.load.percentiles import ratio
from benchmarks.servers.served import Served, ours, running
from benchmarks.servers.small_models import TINY_SHAPE, drawn_request, tiny
from benchmarks.turns import end
from models import zoo
from models.compiler import CompileOptions, compile_onnx
from models.default import FOLDER as DEFAULT
from models.images.preprocess import Preprocess

_LEAST_GOODPUT = 0.8
_MOST_REFUSAL_MS = 50.0
_SIDE = 224
"""Pixels of the photograph's network, as published."""

# (model, parameters of the request) -> the request, as bytes.
Request = Callable[[dict[str, Any]], bytes]


def _tiny(parameters: dict[str, Any]) -> bytes:
    return drawn_request("tiny", "x", TINY_SHAPE, parameters)


def _large(parameters: dict[str, Any]) -> bytes:
    return drawn_request("resnet18", "image", (1, 3, _SIDE, _SIDE), parameters)


def _photograph(parameters: dict[str, Any]) -> bytes:
    assert not parameters
    with Image.open(DEFAULT / "cat.png") as image, io.BytesIO() as file:
        image.convert("RGB").save(file, "JPEG", quality=85)
        body = file.getvalue()
    kind = {"Content-Type": "image/jpeg"}
    return request_bytes("POST", "/v2/models/resnet18:classify", body, kind)


#: Request, and whether its body has room for parameters.
CASES: dict[str, tuple[Request, bool]] = {
    "tiny": (_tiny, True),
    "photograph": (_photograph, False),
    "tensor": (_large, True),
}


def _build(folder: Path) -> Path:
    repository = folder / "repository"
    compile_onnx(tiny(folder), repository / "tiny")
    source = folder / "resnet18.onnx"
    zoo.build("resnet18", source, resolution=_SIDE)
    recipe = Preprocess(size=(_SIDE, _SIDE), mean=(123.7, 116.3, 103.5), std=(58.4, 57.1, 57.4))
    compile_onnx(source, repository / "resnet18", CompileOptions(preprocess=recipe))
    return repository


class _Bench:
    """One server under the loads of one case."""

    def __init__(self, served: Served, load: LoadProcess, folder: Path, given: Any) -> None:
        self._served, self._load, self._folder, self._given = served, load, folder, given

    def case(self, name: str) -> dict[str, Any]:
        """Return what came of the loads of a case, each beside the capacity found before them.

        The capacity is measured again at the end: where it differs, the machine had other work.
        """
        request, takes_parameters = CASES[name]
        file, deadline = self._write(name, request({})), self._given.timeout / 1e6
        self._closed(file, min(2.0, self._given.seconds))
        capacity = self._closed(file, self._given.seconds / 3)
        rate = capacity["per_second"]
        runs = {"at_1x": self._open(file, rate), "at_3x": self._open(file, 3 * rate)}
        if takes_parameters:
            hurried = self._write(f"{name}-timeout", request({"timeout": self._given.timeout}))
            runs["at_3x_with_timeout"] = self._open(hurried, 3 * rate, deadline=deadline)
        for run in runs.values():
            run["goodput_of_capacity"] = ratio(run["goodput"], rate)
        again = self._closed(file, self._given.seconds / 3)
        return {"capacity": capacity, **runs, "capacity_again": again}

    def _closed(self, file: Path, seconds: float) -> dict[str, Any]:
        return self._load.closed(self._served.port, file, self._given.clients, seconds)

    def _write(self, name: str, request: bytes) -> Path:
        file = self._folder / f"{name}.request"
        file.write_bytes(request)
        return file

    def _open(self, file: Path, rate: float, **more: Any) -> dict[str, Any]:
        given = self._given
        addresses = [f"127.0.0.{2 + index}" for index in range(given.addresses)]
        job = {"seconds": given.seconds, "connections": given.connections, "addresses": addresses}
        return self._load.open(self._served.port, file, rate=max(rate, 0.1), **job, **more)


def _faults(name: str, case: dict[str, Any]) -> list[str]:
    """Return in words what is not within the bounds of a case at 3 x."""
    faults = []
    for label in ("at_3x", "at_3x_with_timeout"):
        run = case.get(label, {})
        slowest = run.get("refused", {}).get("p99_ms", 0.0)
        if slowest >= _MOST_REFUSAL_MS:
            faults.append(f"{name} {label}: refusals take {slowest} ms, bound {_MOST_REFUSAL_MS}")
    share = case["at_3x"]["goodput_of_capacity"] or 0.0
    if share < _LEAST_GOODPUT:
        faults.append(f"{name} at_3x: goodput {share} of capacity, bound {_LEAST_GOODPUT}")
    return faults


def main() -> None:
    """Measure and print JSON; exit 1 when goodput or refusals at 3 x are not within their bounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default=",".join(CASES), type=lambda text: text.split(","))
    parser.add_argument("--seconds", type=float, default=15.0, help="of each open load")
    parser.add_argument("--clients", type=int, default=8, help="that the capacity is measured with")
    parser.add_argument("--connections", type=int, default=128, help="at most, in all")
    parser.add_argument("--addresses", type=int, default=4, help="that connections come from")
    parser.add_argument("--timeout", type=int, default=150_000, help="microseconds")
    parser.add_argument("--budget", default="48MiB")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=".") as name:
        folder = Path(name)
        with (
            running(ours(_build(folder), options.budget), "--port") as served,
            LoadProcess() as load,
        ):
            bench = _Bench(served, load, folder, options)
            cases = {case: bench.case(case) for case in options.cases}
    faults = [fault for name, case in cases.items() for fault in _faults(name, case)]
    end({"cases": cases, "faults": faults}, not faults)


if __name__ == "__main__":
    main()
