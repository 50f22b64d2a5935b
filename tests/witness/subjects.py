"""What is witnessed: networks of the zoo at small sizes, those that are shipped, odd graphs; also as
integers, with stored weights, and for a GPU.
"""

import multiprocessing
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper
from PIL import Image

from models import cells, default, zoo
from models.compiler import CompileOptions
from models.images.preprocess import Preprocess
from models.packs.names import Store
from models.packs.target import cuda_target
from pipeline.devices.find import device_measure
from tests.models.compiler import test_resident as resident
from tests.models.nets import inputs_for, parsed, written

Inputs = Mapping[str, NDArray[Any]]
#: Writes a network to a file; returns inputs where drawn ones would say little.
Make = Callable[[Path], Inputs | None]

CUDA = cuda_target(72)


@dataclass(frozen=True)
class Subject:
    """``runs_c``: its C is compiled and run. ``emulated``: a driver without a GPU runs its launches."""

    make: Make
    options: CompileOptions = field(default_factory=CompileOptions)
    runs_c: bool = False
    emulated: bool = False


def of_zoo(name: str, resolution: int, path: Path, **options: Any) -> None:
    zoo.build(name, path, resolution, options=options)


def shipped(file: Path, path: Path) -> None:
    shutil.copy(file, path)


def odd(make: Callable[[], tuple[onnx.ModelProto, Inputs]], path: Path) -> Inputs:
    model, inputs = make()
    written(model, path)
    return inputs


def boxes() -> tuple[onnx.ModelProto, Inputs]:
    """Convolutions make boxes and scores, and a selection of them whose size only a run gives."""
    model = parsed(
        """boxes (float[1,32,8,8] x) => (int64[n,3] chosen, float[1,64,4] corners) {
            a = Conv<pads=[1,1,1,1]>(x, w)
            b = Relu(a)
            places, scored = Split<axis=1>(b, parts)
            corners = Reshape(places, four)
            scores = Reshape(scored, one)
            chosen = NonMaxSuppression(corners, scores, most, overlap)
        }""",
        {"w": (8, 32, 3, 3)},
    )
    integers = {"parts": [4, 4], "four": [1, 64, 4], "one": [1, 4, 64], "most": [5]}
    arrays: Inputs = {name: np.array(numbers, np.int64) for name, numbers in integers.items()}
    for name, array in {**arrays, "overlap": np.array([0.5], np.float32)}.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model, inputs_for({"x": (1, 32, 8, 8)})


def recurrent() -> tuple[onnx.ModelProto, Inputs]:
    model = parsed(
        """lstm (float[6,1,32] x) => (float[6,1,1,48] y, float[1,1,16] z) {
            y, last = LSTM<hidden_size=48>(x, w, r, b)
            z = MatMul(last, v)
        }""",
        {"w": (1, 192, 32), "r": (1, 192, 48), "b": (1, 384), "v": (48, 16)},
    )
    return model, inputs_for({"x": (6, 1, 32)})


def unknown_batch() -> tuple[onnx.ModelProto, Inputs]:
    model = parsed(
        """batch (float[n,16,9,9] x) => (float[n,24,9,9] y) {
            a = Conv<pads=[1,1,1,1]>(x, w)
            s = Sigmoid(a)
            y = Mul(a, s)
        }""",
        {"w": (24, 16, 3, 3)},
    )
    return model, inputs_for({"x": (1, 16, 9, 9)})


def quantised(path: Path) -> None:
    """What onnxruntime.quantization makes, whose sessions do not take the pool of this process."""
    child = multiprocessing.get_context("spawn").Process(target=_quantise, args=(path,))
    child.start()
    child.join()


def _quantise(path: Path) -> None:
    from tests.models.compiler.optimising import test_quantisers as quantisers

    floats = written(quantisers.network(), path.with_name("floats.onnx"))
    quantisers.VARIANTS["QDQ u8 s8 channels"](floats, path)


def pictures(side: int) -> Iterator[Image.Image]:
    generator = np.random.default_rng(0)
    for _ in range(4):
        yield Image.fromarray(generator.integers(0, 256, (side, side, 3), np.uint8))


def as_integers(side: int) -> CompileOptions:
    recipe = Preprocess(size=(side, side), mean=(128.0,), std=(64.0,))
    return CompileOptions(preprocess=recipe, calibrate=partial(pictures, side))


#: Sides of pictures where they are not as usual: of what has no other, or is large.
SIDES = {"default": 32, "patchnet-64KiB": 224, "vgg16": 64, "vgg19": 64, "yolov4-p6": 128}
SMALL: dict[str, Make] = {
    "default": partial(shipped, default.FOLDER / "cifar10.onnx"),
    "patchnet-64KiB": partial(of_zoo, "patchnet", 224, budget=64 << 10, classes=10),
    "patchnet-32KiB": partial(of_zoo, "patchnet", 96, budget=32 << 10, classes=10, margin=8),
}
ODD = (
    *(resident.branches, resident.loop, resident.selection, resident.strings, resident.bfloat16),
    *(resident.unknown_rank, boxes, recurrent, unknown_batch),
)
RUN_IN_C = (
    *("default", "default:int8", "patchnet-64KiB", "patchnet-64KiB:int8", "mobilenetv1"),
    *("mobilenetv2", "mobilenetv2:int8", "squeezenet1.1", "resnet18", "efficientnet-b0"),
    *("darknet-tiny", "yolov4-tiny", "odd:quantised"),
)
ON_CUDA = (
    *("default", "patchnet-32KiB", "resnet18", "mobilenetv2", "squeezenet1.1", "efficientnet-b0"),
    *("densenet121", "vit-s16", "convnext-tiny", "yolov4-tiny", "yolov8n"),
)
AS_INTEGERS = (
    *("default", "patchnet-64KiB", "mobilenetv2", "resnet50", "efficientnet-b0", "squeezenet1.1"),
    *("densenet121", "yolov4-tiny"),
)
STORED: dict[str, Store] = {"mobilenetv2": "fp16", "resnet18": "int8", "squeezenet1.1": "lossless"}


def side_of(name: str) -> int:
    return SIDES.get(name, 160 if name.startswith("yolo") else 96)


def subjects() -> dict[str, Subject]:
    """Return all subjects by name."""
    makes = {name: partial(of_zoo, name, side_of(name)) for name in zoo.ENTRIES} | SMALL
    found = {name: Subject(make) for name, make in makes.items()}
    found["cells"] = Subject(partial(shipped, cells.FOLDER / "detector.onnx"))
    found |= {f"{n}:int8": Subject(makes[n], as_integers(side_of(n))) for n in AS_INTEGERS}
    for name, store in STORED.items():
        found[f"{name}:stored {store}"] = Subject(makes[name], CompileOptions(store=store))
    found |= {f"odd:{make.__name__}": Subject(partial(odd, make)) for make in ODD}
    found["odd:quantised"] = Subject(quantised)
    found |= {name: replace(found[name], runs_c=True) for name in RUN_IN_C}
    on_gpu = CompileOptions(target=CUDA, measure=device_measure(CUDA))
    for name in ON_CUDA:
        found[f"{name}:cuda"] = Subject(makes[name], on_gpu, emulated=name in SMALL)
    return found
