"""A small pack with layers far above its chunks: for tests of what runs it."""

from pathlib import Path

import onnx

from models.compiler import CompileOptions, compile_onnx
from models.packs.pack import open_pack
from models.zoo.builder import SkeletonBuilder
from pipeline.program.prepare import Abilities, prepare
from pipeline.program.program import Program
from tests.models.nets import filled

CHUNK_BYTES = 16 << 10


def small_pack(folder: Path) -> Path:
    """Compile a network with a residual sum and a classifier; return the folder of its pack."""
    b = SkeletonBuilder("small", 16)
    x = b.relu(b.norm(b.conv(b.image, 32, 3)))
    y = b.norm(b.conv(b.relu(b.norm(b.conv(x, 32, 3))), 32, 3))
    x = b.relu(b.add(y, x))
    x = b.relu(b.norm(b.conv(x, 64, 3, 2)))
    model = b.model(b.linear(b.flatten(b.max_pool(x, 2, 2)), 10))
    source = folder / "small.onnx"
    onnx.save(filled(model, seed=3), source)
    return compile_onnx(source, folder / "small", CompileOptions(chunk_bytes=CHUNK_BYTES))


class TwoThreads:
    """A device for which two threads compute what the compiler left, and that has no kernels of its own."""

    def abilities(self) -> Abilities:
        return Abilities(threads=2)


def maps_program(folder: Path) -> Program:
    """Return a network whose first maps take more than its largest weights, in any layout."""
    net = SkeletonBuilder("maps", 96)
    x = net.relu(net.norm(net.conv(net.image, 16, 3)))
    for channels, stride in ((32, 2), (32, 1), (64, 2), (64, 2)):
        x = net.relu(net.norm(net.conv(x, channels, 3, stride)))
    onnx.save(filled(net.model(net.linear(net.flatten(x), 10)), seed=1), folder / "maps.onnx")
    return prepare(open_pack(compile_onnx(folder / "maps.onnx", folder / "maps")), TwoThreads())
