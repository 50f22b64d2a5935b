"""Commands of pages run as they are printed, in a folder that has the files which a reader would bring.

README.md and pages on an installation run in a clone and in a booted system: ``tests.check_readme`` and
tools/check_deploy.sh.
"""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import pytest

from benchmarks.servers.served import free_port
from models.darknet.skeleton import CFG
from tests.check_readme import moved, run, script
from tests.documents import ROOT, Block, read
from tests.models.nets import parsed

SECONDS = 400.0
COCO = [f"object {number}" for number in range(80)]

# Servers of a page load what its next lines compile: a reader would ask again.
CURLRC = """fail
retry = 40
retry-delay = 1
retry-all-errors
"""


@dataclass(frozen=True)
class Shown:
    """A page whose blocks run.

    ``recipes``: names of its TOML blocks, in their order; ``bring``: makes other files; ``asks``: a server
    of the folder's repository is there; ``without``: words of blocks that other checks run.
    """

    page: str
    bring: Callable[[Path], None] = lambda folder: None
    recipes: Sequence[str] = field(default_factory=tuple)
    asks: bool = False
    without: tuple[str, ...] = ()


def command(*words: str | Path) -> None:
    """Run a command of ours in a process of its own, where the files that are brought lie."""
    subprocess.run(
        [sys.executable, "-m", "cli", *words],
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def zoo(folder: Path, name: str, network: str, *options: str) -> None:
    command("zoo", "build", network, *options, "-o", folder / f"{name}.onnx")


def names(path: Path, texts: Sequence[str]) -> None:
    path.write_text("".join(f"{text}\n" for text in texts), "utf-8")


def pictures(folder: Path) -> None:
    photographs = sorted((ROOT / "models/photographs").glob("*.jpg"))
    for name in ("dog.jpg", "obama.jpg", "1.jpg"):
        shutil.copy(photographs[0], folder / name)
    (folder / "photographs").mkdir()
    for number in range(12):
        shutil.copy(photographs[number % len(photographs)], folder / f"photographs/{number}.jpg")


def classifier(folder: Path) -> None:
    zoo(folder, "squeezenet", "squeezenet1.1", "--resolution", "227")
    names(folder / "labels.txt", [f"class {number}" for number in range(1000)])


def own_models(folder: Path) -> None:
    """What docs/how-to/models.md names: Darknet's files, a classifier, a network of masks, one of texts."""
    pictures(folder)
    classifier(folder)
    names(folder / "coco.names", COCO)
    zoo(folder, "darknet", "yolov4-tiny")
    built = onnx.load(folder / "darknet.onnx", load_external_data=False)
    texts = {entry.key: entry.value for entry in built.metadata_props}
    (folder / "yolov4-tiny.cfg").write_text(json.loads(texts[CFG]), "utf-8")
    command("export-darknet", folder / "darknet.onnx", "-o", folder / "yolov4-tiny.weights")
    names(folder / "person.names", ["background", "person"])
    masks = parsed(
        """masks (float[1,3,320,320] image) => (float[1,2,320,320] mask) {
            planes = Conv<pads=[1,1,1,1]>(image, w)
            mask = Softmax<axis=1>(planes)
        }""",
        {"w": (2, 3, 3, 3)},
    )
    onnx.save(masks, folder / "SINet.onnx")
    texts_of = parsed(
        """texts (int64[batch,length] tokens) => (float[1,1] logits) <int64 one = {1}, float ten = {10.0}> {
            numbers = Cast<to=1>(tokens)
            sum = ReduceSum<keepdims=0>(numbers)
            mean = ReduceMean<axes=[1]>(numbers)
            large = Greater(sum, ten)
            logits = If (large) <
                then_branch = yes () => (float[1,1] y) { y = Identity(mean) },
                else_branch = no () => (float[1,1] n) { n = Neg(mean) }
            >
        }"""
    )
    onnx.save(texts_of, folder / "model.onnx")
    np.save(folder / "tokens.npy", np.array([[4, 8, 15, 16]], np.int64))


def detectors(folder: Path) -> None:
    """What docs/how-to/detectors.md names: three networks with outputs of the shapes that it says."""
    pictures(folder)
    names(folder / "coco.names", COCO)
    zoo(folder, "yolov8n", "yolov8n")
    heads = parsed(
        """heads (float[1,3,416,416] image) => (float[1,255,13,13] coarse, float[1,255,26,26] fine) {
            coarse = Conv<strides=[32,32]>(image, w32)
            fine = Conv<strides=[16,16]>(image, w16)
        }""",
        {"w32": (255, 3, 32, 32), "w16": (255, 3, 16, 16)},
    )
    onnx.save(heads, folder / "tiny.onnx")
    faces = parsed(
        """faces (float[1,3,240,320] input) => (float[1,4420,2] scores, float[1,4420,4] boxes)
            <int64[3] s = {1,4420,2}, int64[3] b = {1,4420,4}> {
            pooled = GlobalAveragePool(input)
            flat = Flatten(pooled)
            all = MatMul(flat, ws)
            pairs = Reshape(all, s)
            scores = Softmax<axis=2>(pairs)
            edges = MatMul(flat, wb)
            rows = Reshape(edges, b)
            boxes = Sigmoid(rows)
        }""",
        {"ws": (3, 8840), "wb": (3, 17680)},
    )
    onnx.save(faces, folder / "version-RFB-320.onnx")


def fewer_bytes(folder: Path) -> None:
    pictures(folder)
    classifier(folder)
    (folder / "preprocess.toml").write_text("size = [227, 227]\n", "utf-8")
    command(
        *("compile", folder / "squeezenet.onnx", "-o", folder / "repository/squeezenet"),
        *("--preprocess", folder / "preprocess.toml", "--labels", folder / "labels.txt"),
    )
    zoo(folder, "resnet50", "resnet50", "--resolution", "64")


def default_pack(folder: Path, name: str = "cifar10") -> None:
    default = ROOT / "models/default"
    command(
        *("compile", default / "cifar10.onnx", "-o", folder / "repository" / name),
        *("--labels", default / "labels.txt", "--preprocess", default / "preprocess.toml"),
    )


def data_sets(folder: Path) -> None:
    """A few pictures of each data set that docs/how-to/evaluate.md names, in that set's own form."""
    default_pack(folder)
    default_pack(folder, "mine")
    command("compile", ROOT / "models/cells/detector.onnx", "-o", folder / "repository/cells")
    (folder / "cifar-10-batches-bin").mkdir()
    generator = np.random.default_rng(1)
    records = generator.integers(0, 256, (10, 3073), np.uint8)
    records[:, 0] = range(10)
    (folder / "cifar-10-batches-bin/test_batch.bin").write_bytes(records.tobytes())
    with zipfile.ZipFile(folder / "bccd.zip", "w") as file:
        file.write(ROOT / "models/cells/cells.jpg", "BCCD/JPEGImages/one.jpg")
        file.writestr("BCCD/ImageSets/Main/test.txt", "one\n")
        box = "<xmin>213</xmin><ymin>290</ymin><xmax>444</xmax><ymax>480</ymax>"
        file.writestr(
            "BCCD/Annotations/one.xml",
            f"<annotation><object><name>WBC</name><bndbox>{box}</bndbox></object></annotation>",
        )
    (folder / "pictures/cat").mkdir(parents=True)
    shutil.copy(ROOT / "models/default/cat.png", folder / "pictures/cat/cat.png")


def two_networks(folder: Path) -> None:
    (folder / "packs").mkdir()
    zoo(folder, "resnet18", "resnet18")
    zoo(folder, "yolov4-tiny", "yolov4-tiny")
    command("compile", folder / "yolov4-tiny.onnx", "-o", folder / "packs/yolov4-tiny")


def mobile_pack(folder: Path) -> None:
    zoo(folder, "mobilenetv2", "mobilenetv2")
    command("compile", folder / "mobilenetv2.onnx", "-o", folder / "repository/mobilenetv2")


SHOWN = (
    Shown("docs/tutorials/first-model.md", without=("bootstrap", "yolov4")),
    Shown("docs/tutorials/camera.md"),
    Shown(
        "docs/how-to/models.md",
        own_models,
        ("preprocess.toml", "sinet.toml", "segmentation.toml"),
    ),
    Shown(
        "docs/how-to/detectors.md",
        detectors,
        (
            *("detection.toml", "letterbox.toml", "detection.toml", "letterbox.toml"),
            *("face.toml", "decoded.toml", "anchors.toml", "yolox.toml"),
        ),
        asks=True,
    ),
    Shown("docs/how-to/quantise.md", fewer_bytes),
    Shown("docs/how-to/evaluate.md", data_sets),
    Shown("docs/how-to/python.md", two_networks),
    Shown("docs/how-to/export-c.md", default_pack),
    Shown("docs/how-to/upload.md", classifier, asks=True),
    Shown("docs/reference/http.md", default_pack, asks=True),
    Shown("docs/explanation/offsets.md"),
    Shown("docs/research/applications.md"),
    Shown("docs/research/dataflow.md", mobile_pack),
    Shown("docs/research/patchnet.md"),
)


def blocks(shown: Shown) -> list[Block]:
    """Return what of the page runs; TOML is a block that writes its file."""
    recipes = iter(shown.recipes)
    found = []
    for block in read((ROOT / shown.page).read_text("utf-8")).blocks:
        text = block.text
        if block.language == "toml":
            if (name := next(recipes, None)) is not None:
                text = f"cat > {name} <<'END OF FILE'\n{text}END OF FILE\n"
                found.append(Block("sh", text, block.line))
        elif block.language == "console":
            lines = [line[2:] for line in text.splitlines() if line.startswith("$ ")]
            found.append(Block("sh", "".join(f"{line}\n" for line in lines), block.line))
        elif block.language in ("sh", "python") and not any(word in text for word in shown.without):
            found.append(block)
    return found


def reader(folder: Path) -> dict[str, str]:
    """Return what a reader's shell has in a clone: our commands, and a client that asks again."""
    programs = folder / ".bin"
    programs.mkdir()
    for name, words in (("layerstream", " -m cli"), ("python", "")):
        path = programs / name
        path.write_text(f'#!/bin/sh\nexec "{sys.executable}"{words} "$@"\n', "utf-8")
        path.chmod(0o755)
    (folder / ".curlrc").write_text(CURLRC, "utf-8")
    for name in ("models", "docs"):
        (folder / name).symlink_to(ROOT / name)
    return {
        "PATH": f"{programs}:/usr/local/bin:/usr/bin:/bin",
        "PYTHONPATH": str(ROOT),
        "CURL_HOME": str(folder),
    }


@pytest.mark.slow
@pytest.mark.parametrize("shown", SHOWN, ids=lambda shown: shown.page)
def test_a_page_runs_as_it_is_printed(shown: Shown, tmp_path: Path) -> None:
    shown.bring(tmp_path)
    found = blocks(shown)
    if shown.asks:
        serve = "layerstream serve --repository repository --budget 64MiB --model-control poll"
        text = f"mkdir -p repository\n{serve} > server.log 2>&1 &\n"
        text += '[ -z "$(ls repository)" ] || curl localhost:8080/v2/health/ready\n'
        found.insert(0, Block("sh", text, 0))
    text = moved(script(found, shown.page), free_port())
    assert found
    assert run(text, tmp_path, SECONDS, reader(tmp_path)) == 0
