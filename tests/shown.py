"""Which blocks of the pages run in a test, in folders with which files; and which do not, and why.

A page that is not in ``SHOWN`` has no block that runs here; each block of commands that does not run is in
``APART``.
README.md and the pages on an installation run in a clone and in a booted system: ``tests.check_readme`` and
tools/check_deploy.sh.
"""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx

from models.darknet.skeleton import CFG
from models.sound.recipe import Sound
from tests.documents import ROOT, Block, read
from tests.models.nets import parsed
from tests.models.sounds import listener, tone, wav
from tests.models.texts import encoder, write_files

COCO = [f"object {number}" for number in range(80)]
COMMANDS = ("sh", "console", "python")  # the languages of blocks that run
DEFAULT = ROOT / "models/default"
PHOTOGRAPHS = sorted((ROOT / "models/photographs").glob("*.jpg"))


class Kit:
    """What commands of ours make of small networks: made once in ``store``, copied for each page."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._made: dict[tuple[str, ...], Path] = {}

    def made(self, name: str, *words: str | Path) -> Path:
        """Return what ``layerstream WORDS -o FOLDER/NAME`` writes; packs and C have the name inside."""
        key = (name, *map(str, words))
        if key not in self._made:
            path = self._store / str(len(self._made)) / name
            path.parent.mkdir()
            subprocess.run(
                [sys.executable, "-m", "cli", *key[1:], "-o", path],
                check=True,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
            self._made[key] = path
        return self._made[key]

    def network(self, name: str, *options: str) -> Path:
        """Return an ONNX file of the zoo."""
        return self.made(f"{name}.onnx", "zoo", "build", name, *options)

    @property
    def small(self) -> Path:
        """A network that stands for those of which a page has the name."""
        return self.network("squeezenet1.1", "--resolution", "64")

    def pack(self, path: Path, source: Path, *options: str | Path) -> None:
        """Put the pack of ``source`` to ``path``."""
        shutil.copytree(self.made(path.name, "compile", source, *options), path)

    def default(self, folder: Path, name: str = "cifar10") -> None:
        """Put the pack of the shipped classifier into the repository of ``folder``."""
        options = ("--labels", DEFAULT / "labels.txt", "--preprocess", DEFAULT / "preprocess.toml")
        self.pack(folder / "repository" / name, DEFAULT / "cifar10.onnx", *options)


@dataclass(frozen=True)
class Shown:
    """A page whose blocks run.

    ``recipes``: names of its TOML blocks, in their order; ``bring``: makes other files; ``asks``: a server
    of the folder's repository is there.
    """

    page: str
    bring: Callable[[Kit, Path], object] = lambda kit, folder: None
    recipes: Sequence[str] = ()
    asks: bool = False


class Apart(NamedTuple):
    """Blocks that run in no test of pages: those of ``page`` in which ``words`` are, and why."""

    page: str
    words: str
    why: str


def names(path: Path, texts: Sequence[str]) -> None:
    path.write_text("".join(f"{text}\n" for text in texts), "utf-8")


def pictures(folder: Path) -> None:
    for name in ("dog.jpg", "obama.jpg", "1.jpg"):
        shutil.copy(PHOTOGRAPHS[0], folder / name)
    (folder / "photographs").mkdir()
    for number in range(12):
        shutil.copy(PHOTOGRAPHS[number % len(PHOTOGRAPHS)], folder / f"photographs/{number}.jpg")


def classifier(kit: Kit, folder: Path) -> None:
    shutil.copy(kit.network("squeezenet1.1", "--resolution", "227"), folder / "squeezenet.onnx")
    names(folder / "labels.txt", [f"class {number}" for number in range(1000)])


def darknet(kit: Kit, folder: Path) -> None:
    """The cfg and the weights of YOLOv4-tiny."""
    path = kit.network("yolov4-tiny")
    built = onnx.load(path, load_external_data=False)
    texts = {entry.key: entry.value for entry in built.metadata_props}
    (folder / "yolov4-tiny.cfg").write_text(json.loads(texts[CFG]), "utf-8")
    shutil.copy(
        kit.made("yolov4-tiny.weights", "export-darknet", path), folder / "yolov4-tiny.weights"
    )


def texts(path: Path) -> None:
    """A network of numbers of words, with an If."""
    network = parsed(
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
    onnx.save(network, path)


def own_models(kit: Kit, folder: Path) -> None:
    """What docs/how-to/models.md names: Darknet's files, a classifier, networks of masks, depth, texts."""
    pictures(folder)
    classifier(kit, folder)
    names(folder / "coco.names", COCO)
    darknet(kit, folder)
    names(folder / "person.names", ["background", "person"])
    masks = parsed(
        """masks (float[1,3,320,320] image) => (float[1,2,320,320] mask) {
            planes = Conv<pads=[1,1,1,1]>(image, w)
            mask = Softmax<axis=1>(planes)
        }""",
        {"w": (2, 3, 3, 3)},
    )
    onnx.save(masks, folder / "SINet.onnx")
    depth = parsed(
        """depth (float[1,3,64,64] pixel_values) => (float[1,64,64] predicted_depth) {
            planes = Conv<pads=[1,1,1,1]>(pixel_values, w)
            predicted_depth = ReduceMean<axes=[1], keepdims=0>(planes)
        }""",
        {"w": (2, 3, 3, 3)},
    )
    (folder / "depth").mkdir()
    onnx.save(depth, folder / "depth/model.onnx")
    (folder / "depth/config.json").write_text(
        '{"architectures": ["DPTForDepthEstimation"]}', "utf-8"
    )
    processor = {"do_resize": True, "size": 64, "image_processor_type": "DPTImageProcessor"}
    (folder / "depth/preprocessor_config.json").write_text(json.dumps(processor), "utf-8")
    texts(folder / "model.onnx")
    np.save(folder / "tokens.npy", np.array([[4, 8, 15, 16]], np.int64))


def detectors(kit: Kit, folder: Path) -> None:
    """What docs/how-to/detectors.md names: three networks with outputs of the shapes that it says."""
    pictures(folder)
    names(folder / "coco.names", COCO)
    shutil.copy(kit.network("yolov8n"), folder)
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


def fewer_bytes(kit: Kit, folder: Path) -> None:
    pictures(folder)
    classifier(kit, folder)
    recipe = folder / "preprocess.toml"
    recipe.write_text("size = [227, 227]\n", "utf-8")
    source, labels = folder / "squeezenet.onnx", folder / "labels.txt"
    kit.pack(folder / "repository/squeezenet", source, "--preprocess", recipe, "--labels", labels)
    shutil.copy(kit.network("resnet50", "--resolution", "64"), folder)
    data_sets(kit, folder)


def data_sets(kit: Kit, folder: Path) -> None:
    """A few pictures of each data set that docs/how-to/quantise.md names, in that set's own form."""
    kit.default(folder)
    kit.default(folder, "mine")
    kit.pack(folder / "repository/cells", ROOT / "models/cells/detector.onnx")
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
    shutil.copy(DEFAULT / "cat.png", folder / "pictures/cat/cat.png")


def two_networks(kit: Kit, folder: Path) -> None:
    shutil.copy(kit.network("resnet18"), folder)
    kit.pack(folder / "packs/yolov4-tiny", kit.network("yolov4-tiny"))


def mobile_pack(kit: Kit, folder: Path) -> None:
    kit.pack(folder / "repository/mobilenetv2", kit.network("mobilenetv2"))


def two_packs(kit: Kit, folder: Path) -> None:
    kit.default(folder)
    kit.pack(folder / "repository/resnet50", kit.small)


def files_and_a_pack(kit: Kit, folder: Path) -> None:
    """What docs/how-to/up.md names; its detector of texts is a network with that one's input and output."""
    classifier(kit, folder)
    darknet(kit, folder)
    kit.pack(folder / "repository/resnet50", kit.small)
    wheel = folder / ".../rapidocr_onnxruntime/models"
    wheel.mkdir(parents=True)
    detector = parsed(
        """texts (float[n,3,rows,columns] x) => (float[n,1,rows,columns] "sigmoid_0.tmp_0") {
            planes = Conv<pads=[1,1,1,1]>(x, w)
            "sigmoid_0.tmp_0" = Sigmoid(planes)
        }""",
        {"w": (1, 3, 3, 3)},
    )
    onnx.save(detector, wheel / "ch_PP-OCRv4_det_infer.onnx")


def others_files(kit: Kit, folder: Path) -> None:
    """A repository of Triton's, and a file that a program opens."""
    classifier(kit, folder)
    model = folder / "model_repository/squeezenet"
    (model / "1").mkdir(parents=True)
    shutil.copy(folder / "squeezenet.onnx", model / "1/model.onnx")
    (model / "config.pbtxt").write_text(
        'name: "squeezenet"\nplatform: "onnxruntime_onnx"\nmax_batch_size: 8\ndynamic_batching { }\n'
    )
    shutil.copy(folder / "labels.txt", model)


def texts_pack(kit: Kit, folder: Path) -> None:
    texts(folder / "model.onnx")
    kit.pack(folder / "repository/model", folder / "model.onnx", "--shape", "tokens=1,4")


def text_encoder(kit: Kit, folder: Path) -> None:
    """What docs/how-to/text.md names: an encoder of any length, and a tokenizer of few words."""
    from tokenizers import BertWordPieceTokenizer

    model = folder / "minilm/onnx/model.onnx"
    model.parent.mkdir(parents=True)
    onnx.save(encoder("tokens", rows=100), model)
    tokenizer = BertWordPieceTokenizer()
    text = (ROOT / "docs/how-to/text.md").read_text("utf-8")
    tokenizer.train_from_iterator([text], vocab_size=100, show_progress=False)
    tokenizer.save(str(folder / "minilm/tokenizer.json"))
    write_files(folder / "minilm")


def sound_encoder(kit: Kit, folder: Path) -> None:
    """What docs/how-to/sound.md names: a network of a spectrogram, and a second of sound."""
    model = folder / "whisper/onnx/encoder_model.onnx"
    model.parent.mkdir(parents=True)
    config = {"feature_extractor_type": "WhisperFeatureExtractor", "sampling_rate": 16_000}
    (folder / "whisper/preprocessor_config.json").write_text(json.dumps(config), "utf-8")
    onnx.save(listener(Sound(rate=16_000, n_fft=400, hop=160, bins=80, frames=3000)), model)
    (folder / "speech.wav").write_bytes(wav(tone(16_000, 1, 2)))


def changed_model(kit: Kit, folder: Path) -> None:
    two_packs(kit, folder)
    classifier(kit, folder)
    shutil.copy(kit.small, folder / "new.onnx")


def compiled_c(kit: Kit, folder: Path) -> None:
    """A network as C, net.c, and a program with it."""
    kit.default(folder)
    exported = kit.made("c", "export-c", DEFAULT / "cifar10.onnx")
    shutil.copy(exported / "cifar10.h", folder)
    shutil.copy(exported / "cifar10.c", folder / "net.c")
    text = """#include "cifar10.h"
static float image[CIFAR10_IMAGE_SIZE], logits[CIFAR10_LOGITS_SIZE];
int main(void) { return cifar10_run(image, logits); }
"""
    (folder / "program.c").write_text(text, "utf-8")
    files = [folder / "program.c", folder / "net.c"]
    subprocess.run(["cc", *files, "-lm", "-o", folder / "program"], check=True)


SHOWN = (
    Shown("docs/index.md"),
    Shown("docs/tutorials/first-model.md"),
    Shown("docs/tutorials/camera.md"),
    Shown(
        "docs/tutorials/arm-board.md",
        lambda kit, folder: shutil.copy(kit.small, folder / "model.onnx"),
    ),
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
    Shown("docs/how-to/sound.md", sound_encoder),
    Shown("docs/how-to/text.md", text_encoder, ("vectors.toml",)),
    Shown("docs/how-to/coming-from.md", others_files),
    Shown("docs/how-to/up.md", files_and_a_pack),
    Shown("docs/how-to/budget.md", two_packs),
    Shown("docs/how-to/doctor.md", two_packs),
    Shown("docs/how-to/quantise.md", fewer_bytes),
    Shown("docs/how-to/python.md", two_networks),
    Shown(
        "docs/how-to/export-c.md",
        lambda kit, folder: shutil.copy(DEFAULT / "cifar10.onnx", folder),
    ),
    Shown("docs/how-to/several-models.md", changed_model, asks=True),
    Shown("docs/how-to/deadlines.md", texts_pack, asks=True),
    Shown("docs/how-to/access.md", Kit.default),
    Shown("docs/how-to/cameras.md"),
    Shown(
        "docs/how-to/gpu.md",
        lambda kit, folder: shutil.copy(kit.small, folder / "yolov4.onnx"),
    ),
    Shown(
        "docs/how-to/scale.md",
        lambda kit, folder: kit.pack(folder / "repository/yolov4", kit.small),
        ("MODELS.toml", "NODES.toml"),
    ),
    Shown("docs/how-to/containers.md", two_packs),
    Shown("docs/how-to/symptoms.md"),
    Shown("docs/reference/options.md"),
    Shown("docs/reference/options-operate.md"),
    Shown("docs/reference/darknet.md", darknet),
    Shown("docs/reference/errors.md"),
    Shown("docs/reference/limits.md", Kit.default),
    Shown("docs/reference/metrics.md", Kit.default),
    Shown("docs/reference/pack-format.md"),
    Shown("docs/reference/settings.md", Kit.default),
    Shown("docs/reference/http.md", Kit.default),
    Shown("docs/reference/grpc.md", Kit.default),
    Shown(
        "docs/reference/passes.md",
        lambda kit, folder: shutil.copy(DEFAULT / "cifar10.onnx", folder / "net.onnx"),
    ),
    Shown("docs/reference/operators.md"),
    Shown("docs/reference/pack-manifest.md", Kit.default),
    Shown("docs/reference/zoo.md"),
    Shown("docs/reference/licences.md"),
    Shown("docs/glossary.md", Kit.default),
    Shown("docs/explanation/streaming.md", Kit.default),
    Shown("docs/explanation/rows.md", Kit.default),
    Shown("docs/explanation/scheduling.md", Kit.default),
    Shown("docs/explanation/offsets.md"),
    Shown("docs/explanation/c-export.md", compiled_c),
    Shown("docs/explanation/operators.md"),
    Shown("docs/explanation/plans.md", Kit.default),
    Shown("docs/explanation/architecture/compiling.md"),
    Shown("docs/explanation/architecture/connections.md", Kit.default, asks=True),
    Shown("docs/explanation/architecture/dependencies.md"),
    Shown("docs/explanation/architecture/devices.md", Kit.default),
    Shown("docs/explanation/architecture/loading.md", Kit.default, asks=True),
    Shown("docs/explanation/architecture/memory.md", Kit.default),
    Shown("docs/explanation/architecture/partitions.md", Kit.default),
    Shown("docs/explanation/architecture/quantised.md"),
    Shown("docs/explanation/architecture/reading.md", Kit.default),
    Shown("docs/explanation/architecture/request.md", Kit.default, asks=True),
    Shown("docs/research/bound.md", Kit.default),
    Shown("docs/research/budgets.md"),
    Shown("docs/research/demand-layering.md", Kit.default),
    Shown("docs/research/load.md"),
    Shown("docs/research/papers.md"),
    Shown("docs/research/process.md", Kit.default),
    Shown("docs/research/profile.md", Kit.default),
    Shown("docs/research/dataflow.md", mobile_pack),
    Shown("docs/research/patchnet.md"),
    Shown("docs/research/tiles.md"),
)

#: Pages whose blocks ``sh`` and ``python`` run elsewhere: in a clone, as root in a booted system.
ELSEWHERE = {
    "README.md": "tests/check_readme.py",
    **{
        f"docs/how-to/{name}.md": "tools/check_deploy.sh"
        for name in ("production", "access", "monitoring", "runbooks", "upgrade")
    },
}

_INSTALLS = "installs packages: README.md's does the same"

APART = (
    Apart("docs/index.md", "bootstrap", _INSTALLS),
    Apart("README.md", "make demo", "makes an environment, and takes minutes"),
    Apart("README.md", "F.onnx", "the file is the reader's; the block after it is the same"),
    Apart("CONTRIBUTING.md", "make check", "all checks of the code"),
    Apart("docs/tutorials/first-model.md", "bootstrap", _INSTALLS),
    Apart("docs/tutorials/first-model.md", "yolov4", "two minutes and 650 MB of disk"),
    Apart("docs/tutorials/arm-board.md", "bootstrap", _INSTALLS),
    Apart("docs/tutorials/arm-board.md", "scp", "another machine"),
    Apart("docs/how-to/install.md", "bootstrap", _INSTALLS),
    Apart("docs/how-to/production.md", "make deb", "root and systemd; tools/check_package.sh"),
    Apart("docs/how-to/text.md", "from openai", "openai, which is not installed"),
    Apart("docs/how-to/embed.md", "mount(", "tests/layerstream/test_embed.py runs it"),
    Apart("docs/how-to/embed.md", "write_models", "tests/layerstream/test_embed.py runs it"),
    Apart("docs/how-to/gpu.md", "serve --repository", "a GPU"),
    Apart("docs/how-to/containers.md", "docker", "Docker's daemon"),
    Apart("docs/how-to/containers.md", "kubectl", "a cluster"),
    Apart("docs/how-to/containers.md", "serve.yaml", "Ray on each node; tests/deploy/ray"),
    Apart("docs/how-to/upgrade.md", "systemctl reload", "root and systemd"),
    Apart("docs/reference/jetson.md", "device cuda", "a board with a GPU"),
    Apart("docs/research/measurements.md", "headline", "minutes, and root"),
)


def why_not(page: str, block: Block) -> list[str]:
    """Return why a block of commands does not run here; nothing, if it does."""
    found = [entry.why for entry in APART if entry.page == page and entry.words in block.text]
    if page in ELSEWHERE and block.language in ("sh", "python"):
        found.append(ELSEWHERE[page])
    return found


def blocks(shown: Shown) -> list[Block]:
    """Return what of the page runs, for a shell or Python; TOML is a block that writes its file."""
    recipes = iter(shown.recipes)
    found = []
    for block in read((ROOT / shown.page).read_text("utf-8")).blocks:
        if block.language == "toml":
            if (name := next(recipes, None)) is not None:
                text = f"cat > {name} <<'END OF FILE'\n{block.text}END OF FILE\n"
                found.append(Block("sh", text, block.line))
        elif block.language in COMMANDS and not why_not(shown.page, block):
            found.append(block)
    return found
