"""What decoding a picture takes, measured by the system: Pillow's memory is not Python's."""

import io
import subprocess
import sys
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from models.images.preprocess import Preprocess
from models.records import plain, to_json
from server.requests.pictures import OpenedPicture, PictureLimits
from tests.fuzz.picture_files import chunk, many_codes, runs, striped

WIDTH, HEIGHT = 2000, 1500
# Buffers of rows and strips, tables of codecs, and what the allocator has around them.
SLACK_BYTES = 3 << 20
LIMITS = PictureLimits(1 << 30, 1 << 40)

# The peak of the process beyond what it had with a small picture of the same kind.
MEASURE = """
import re, sys
from io import BytesIO
from pathlib import Path
from server.requests.pictures import PictureLimits, decode
limits = PictureLimits(1 << 30, 1 << 40)
decode(BytesIO(Path(sys.argv[1]).read_bytes()), limits)
file = BytesIO(Path(sys.argv[2]).read_bytes())
def resident(name):
    return int(re.search(name + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) << 10
before = resident("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
photograph = decode(file, limits)
print(resident("VmHWM") - before)
"""


def pixels(width: int, height: int) -> Image.Image:
    """Neither flat nor noise: a file of a size that photographs have."""
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    planes = [(x * y >> 8) & 255, (x + y) & 255, (x ^ y) & 255]
    return Image.fromarray(np.stack(planes, 2).astype(np.uint8))


# Kinds of long pictures, whose rows or columns a decoder holds.
_LONG: list[tuple[str, dict[str, Any]]] = [
    *((kind, {}) for kind in ("JPEG", "PNG", "GIF", "BMP", "TIFF", "PPM")),
    ("JPEG", {"progressive": True}),
    ("TIFF", {"compression": "tiff_adobe_deflate", "strip_size": 1 << 30}),
]


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def turned(image: Image.Image) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return saved(image, "JPEG", exif=exif)


def sixteen_bits(image: Image.Image) -> Image.Image:
    return Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257)


def _long(kind: str, size: tuple[int, int], options: dict[str, Any], image: Image.Image) -> bytes:
    return saved(image.resize(size), kind, **options)


def bloated(png: bytes) -> bytes:
    text = zlib.compress(("a" * ((1 << 20) - 8) + "\U0001f600").encode(), 9)
    return png[:33] + chunk(b"iTXt", b"k\0\1\0\0\0" + text) * 60 + png[33:]


def odd_ppm(image: Image.Image) -> bytes:
    return b"P6\n%d %d\n200\n%b" % (image.width, image.height, image.tobytes())


# The same for what becomes of a decoded picture.
TENSOR = """
import re, sys
from pathlib import Path
from PIL import Image
from models.images.preprocess import Preprocess
from models.records import read_json
recipe = read_json(Preprocess, sys.argv[1])
def resident(name):
    return int(re.search(name + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) << 10
recipe.tensor(Image.new("RGB", (64, 64)))
image = Image.effect_noise((int(sys.argv[2]), int(sys.argv[3])), 99).convert("RGB")
before = resident("VmRSS")
Path("/proc/self/clear_refs").write_text("5")
tensor = recipe.tensor(image)
print(resident("VmHWM") - before)
"""

KINDS: dict[str, Callable[[Image.Image], bytes]] = {
    "JPEG": lambda image: saved(image, "JPEG"),
    "JPEG, progressive": lambda image: saved(image, "JPEG", progressive=True),
    "JPEG, turned": turned,
    "JPEG, grey": lambda image: saved(image.convert("L"), "JPEG"),
    "JPEG, CMYK": lambda image: saved(image.convert("CMYK"), "JPEG"),
    "PNG": lambda image: saved(image, "PNG", compress_level=1),
    "PNG, palette": lambda image: saved(image.quantize(64), "PNG", compress_level=1),
    "PNG, alpha": lambda image: saved(image.convert("RGBA"), "PNG", compress_level=1),
    "PNG, 16 bits": lambda image: saved(sixteen_bits(image), "PNG", compress_level=1),
    "WEBP": lambda image: saved(image, "WEBP", method=0),
    "WEBP, lossless": lambda image: saved(image, "WEBP", method=0, lossless=True, quality=0),
    "GIF": lambda image: saved(image.quantize(64), "GIF"),
    "BMP": lambda image: saved(image, "BMP"),
    "BMP, palette": lambda image: saved(image.quantize(64), "BMP"),
    "TIFF": lambda image: saved(image, "TIFF"),
    "TIFF, LZW": lambda image: saved(image, "TIFF", compression="tiff_lzw"),
    "TIFF, one strip": lambda image: saved(
        image, "TIFF", compression="tiff_adobe_deflate", strip_size=1 << 30
    ),
    "TIFF, floats": lambda image: saved(image.convert("F"), "TIFF"),
    "PPM": lambda image: saved(image, "PPM"),
    "PPM, of 200": odd_ppm,
    "PGM, 16 bits": lambda image: saved(sixteen_bits(image), "PPM"),
    "JPEG without its end": lambda image: saved(image, "JPEG")[:-2],
    "MPO": lambda image: saved(image, "MPO", save_all=True, append_images=[image]),
    "WEBP, animated": lambda image: saved(
        image, "WEBP", method=0, save_all=True, append_images=[image.rotate(9)]
    ),
    "TIFF, fax": lambda image: saved(image.convert("1"), "TIFF", compression="group4"),
    "TIFF, JPEG": lambda image: saved(image, "TIFF", compression="jpeg"),
    "TIFF, YCbCr": lambda image: saved(image.convert("YCbCr"), "TIFF", compression="tiff_lzw"),
    **{
        f"{kind}, {words} {options}": partial(_long, kind, size, options)
        for words, size in (("wide", (65_500, 16)), ("tall", (16, 65_500)))
        for kind, options in _LONG
    },
    "WEBP, wide": lambda _: saved(Image.new("RGB", (16_383, 16)), "WEBP"),
    "WEBP, lossless and wide": lambda _: saved(
        Image.new("RGB", (16_383, 16)), "WEBP", lossless=True
    ),
    "WEBP, many codes": lambda _: many_codes(400, 400),
    "TIFF, strips in a row": lambda _: striped((1, 700_000), 1, bytes, 1),
    "TIFF, strips apart": lambda _: striped((1, 60_000), 1, bytes, 1, gap=1),
    "TIFF, compressed strips": lambda _: striped((1, 60_000), 1, zlib.compress, 8),
    "BMP, run lengths": lambda _: runs((1000, 1000), b"\xff\7\xff\7\xff\7\xeb\7\0\0" * 1000),
    "PNG, texts": lambda image: bloated(saved(image, "PNG", compress_level=1)),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_decoding_takes_no_more_than_was_said(kind: str, tmp_path: Path) -> None:
    small, large = tmp_path / "small", tmp_path / "large"
    small.write_bytes(KINDS[kind](pixels(64, 64)))
    large.write_bytes(KINDS[kind](pixels(WIDTH, HEIGHT)))
    command = [sys.executable, "-c", MEASURE, str(small), str(large)]
    root = Path(__file__).parents[3]
    taken = int(subprocess.run(command, check=True, capture_output=True, cwd=root).stdout)
    with large.open("rb") as file:
        said = OpenedPicture(file, LIMITS).needed_bytes
    # The file is counted as a body; some decoders read or map the whole of it.
    assert taken <= said + large.stat().st_size + SLACK_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bilinear", "lanczos", "darknet", "opencv"])
@pytest.mark.parametrize("resize", ["stretch", "crop", "letterbox"])
@pytest.mark.parametrize("color", ["RGB", "GRAY"])
@pytest.mark.parametrize("size", [(2000, 1500), (900, 2500), (500, 500)])
def test_a_tensor_takes_no_more_than_was_said(
    kind: Any, resize: Any, color: Any, size: tuple[int, int]
) -> None:
    recipe = Preprocess(size=(608, 512), filter=kind, resize=resize, color=color)
    numbers = map(str, size)
    command = [sys.executable, "-c", TENSOR, to_json(plain(recipe)), *numbers]
    root = Path(__file__).parents[3]
    taken = int(subprocess.run(command, check=True, capture_output=True, cwd=root).stdout)
    assert taken <= recipe.work_bytes(size) + (1 << 20)
