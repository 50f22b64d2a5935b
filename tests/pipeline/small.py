"""A small pack with layers far above its chunks: for tests of what runs it."""

from pathlib import Path

import onnx

from models.compiler import CompileOptions, compile_onnx
from models.initial import filled
from models.zoo.builder import Builder

CHUNK_BYTES = 16 << 10


def small_pack(folder: Path) -> Path:
    """Compile a network with a residual sum and a classifier; return the folder of its pack."""
    b = Builder("small", 16)
    x = b.relu(b.norm(b.conv(b.image, 32, 3)))
    y = b.norm(b.conv(b.relu(b.norm(b.conv(x, 32, 3))), 32, 3))
    x = b.relu(b.add(y, x))
    x = b.relu(b.norm(b.conv(x, 64, 3, 2)))
    model = b.model(b.linear(b.flatten(b.max_pool(x, 2, 2)), 10))
    source = folder / "small.onnx"
    onnx.save(filled(model, seed=3), source)
    return compile_onnx(source, folder / "small", CompileOptions(chunk_bytes=CHUNK_BYTES))
