"""What the mill serves, what good clients ask of it, and what ONNX Runtime alone answers.

``tiny`` takes 16 numbers, ``cifar10`` (the default model) pictures, ``wide`` megabytes in and out;
``spare`` is loaded and unloaded.
"""

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from PIL import Image

from benchmarks.load.messages import Response, infer_request, request_bytes, tensors_document
from benchmarks.servers.small_models import TINY_SHAPE, tiny, wide
from models.compiler import CompileOptions, compile_onnx
from models.default import FOLDER as DEFAULT
from models.images.preprocess import read_labels, read_preprocess

_VARIANTS = 8  # so that an answer meant for another client is noticed
_SIDE = 32

# What is wrong with an answer of status 200, in words, or None.
Fault = Callable[[Response], str | None]


@dataclass(frozen=True)
class Errand:
    """What a good client asks again and again: a request and how to check that the answer is right."""

    name: str
    requests: tuple[tuple[bytes, Fault], ...]
    every: float
    fresh: bool = False
    """A new connection for each request."""


def build_repository(folder: Path) -> Path:
    """Compile the models into a repository in ``folder``."""
    repository = folder / "repository"
    labels = read_labels(DEFAULT / "labels.txt")
    recipe = read_preprocess(DEFAULT / "preprocess.toml")
    trained = CompileOptions(labels=labels, preprocess=recipe)
    source = tiny(folder)
    compile_onnx(source, repository / "tiny")
    compile_onnx(source, repository / "spare")
    compile_onnx(wide(folder), repository / "wide")
    compile_onnx(DEFAULT / "cifar10.onnx", repository / "cifar10", trained)
    return repository


def errands(folder: Path) -> list[Errand]:
    """Return the errands of the good clients, with answers from ONNX Runtime on the sources."""
    numbers, pictures = _tensors(folder / "tiny.onnx"), _pictures()
    ready = ((request_bytes("GET", "/v2/health/ready"), _says('"ready":true')),)
    metrics = ((request_bytes("GET", "/metrics"), _says("layerstream_budget_bytes")),)
    return [
        Errand("infer", numbers, 0.1),
        Errand("infer_fresh", numbers, 0.5, fresh=True),
        Errand("classify", pictures, 0.1),
        Errand("ready", ready, 0.1),
        Errand("metrics", metrics, 1.0),
    ]


def _session(path: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _tensors(source: Path) -> tuple[tuple[bytes, Fault], ...]:
    session, generator = _session(source), np.random.default_rng(1)
    found = []
    for _ in range(_VARIANTS):
        values = generator.standard_normal(TINY_SHAPE).astype(np.float32)
        request = infer_request("tiny", tensors_document({"x": values}))
        found.append((request, _is_tensor(session.run(None, {"x": values})[0])))
    return tuple(found)


def _pictures() -> tuple[tuple[bytes, Fault], ...]:
    """Return photographs of the size that the network takes, so that nothing of ours is between."""
    recipe = read_preprocess(DEFAULT / "preprocess.toml")
    labels = read_labels(DEFAULT / "labels.txt")
    session, found = _session(DEFAULT / "cifar10.onnx"), []
    with Image.open(DEFAULT / "cat.png") as image:
        photograph = image.convert("RGB")
    for index in range(_VARIANTS):
        part = photograph.crop((20 * index, 0, 20 * index + 200, 200)).resize((_SIDE, _SIDE))
        pixels = (np.asarray(part, np.float32) - recipe.mean) / recipe.std
        tensor = np.ascontiguousarray(pixels.transpose(2, 0, 1)[None], np.float32)
        scores = session.run(None, {session.get_inputs()[0].name: tensor})[0].ravel()
        with io.BytesIO() as file:
            part.save(file, "PNG")
            body = file.getvalue()
        kind = {"Content-Type": "image/png"}
        request = request_bytes("POST", "/v2/models/cifar10:classify?top_k=3", body, kind)
        found.append((request, _is_labels([labels[best] for best in np.argsort(-scores)[:3]])))
    return tuple(found)


def _is_tensor(expected: NDArray[Any]) -> Fault:
    def fault(response: Response) -> str | None:
        data = json.loads(response.body)["outputs"][0]["data"]
        if np.allclose(data, expected.ravel(), rtol=1e-4, atol=1e-5):
            return None
        return f"answered {data}, not {expected.ravel().tolist()}"

    return fault


def _is_labels(expected: list[str]) -> Fault:
    def fault(response: Response) -> str | None:
        labels = [each["label"] for each in json.loads(response.body)["predictions"]]
        return None if labels == expected else f"answered {labels}, not {expected}"

    return fault


def _says(text: str) -> Fault:
    def fault(response: Response) -> str | None:
        body = response.body.decode("utf-8", "replace").replace(" ", "")
        return None if text in body else f"answered without {text}"

    return fault
