"""Tiny models whose answers are known, for tests of applications that mount a service.

from layerstream.testing import write_models

settings = Settings(repository=write_models(tmp_path), budget="16MiB")
"""

from pathlib import Path

from models.compiler import CompileOptions, compile_onnx
from models.graphs.text import from_text
from models.graphs.writer import model_of
from models.images.preprocess import Preprocess

#: Labels of "brightness".
LABELS = ("dark", "bright")
_SIZE = 8

# Weights lie in the graph: 2 on the diagonal.
_DOUBLE = """
<ir_version: 9, opset_import: ["" : 17]>
double (float[1, 4] x) => (float[1, 4] y)
<float[4, 4] w = {2, 0, 0, 0, 0, 2, 0, 0, 0, 0, 2, 0, 0, 0, 0, 2}>
{ y = MatMul(x, w) }
"""
# The mean m of all values, from 0 to 1, becomes the scores -16 m and 16 m - 16.
_BRIGHTNESS = f"""
<ir_version: 9, opset_import: ["" : 17]>
brightness (float[1, 3, {_SIZE}, {_SIZE}] image) => (float[1, 2] scores)
<float[1, 2] w = {{-16, 16}}, float[2] b = {{0, -16}}, int64[2] shape = {{1, 1}}>
{{
  mean = ReduceMean <axes = [1, 2, 3], keepdims = 1> (image)
  flat = Reshape(mean, shape)
  product = MatMul(flat, w)
  scores = Add(product, b)
}}
"""


def write_models(folder: Path) -> Path:
    """Write a repository of two packs into ``folder``, which may be new, and return it; blocks briefly.

    "double": x, float32 (1, 4), becomes y, twice as much. "brightness": a picture of any size is "dark" or
    "bright" (``LABELS``).
    """
    repository = folder / "models"
    repository.mkdir(parents=True, exist_ok=True)
    recipe = Preprocess(size=(_SIZE, _SIZE), scale=1 / 255)
    texts = {
        "double": (_DOUBLE, CompileOptions()),
        "brightness": (_BRIGHTNESS, CompileOptions(labels=LABELS, preprocess=recipe)),
    }
    for name, (text, options) in texts.items():
        source = folder / f"{name}.onnx"
        source.write_bytes(model_of(from_text(text)).SerializeToString())
        compile_onnx(source, repository / name, options)
    return repository
