"""Pictures as they come: modes, orientations, sizes; what is decoded and what is refused."""

import io
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from server.errors import InvalidRequestError, TooLargeError
from server.requests.pictures import OpenedPicture, Photograph, PictureLimits, decode

WIDTH, HEIGHT = 61, 43
LIMIT = WIDTH * HEIGHT
LIMITS = PictureLimits(LIMIT, max_bytes=1 << 30)
Saved = Callable[..., Path]


def decoding_bytes(path: Path, limits: PictureLimits) -> int:
    """What the picture in ``path`` takes in all, of which the header is read."""
    return OpenedPicture(io.BytesIO(path.read_bytes()), limits).needed_bytes


@pytest.fixture
def saved(tmp_path: Path) -> Saved:
    def save(image: Image.Image, kind: str = "PNG", **options: Any) -> Path:
        image.save(tmp_path / "picture", kind, **options)
        return tmp_path / "picture"

    return save


def gradient(width: int = WIDTH, height: int = HEIGHT) -> Image.Image:
    """Smooth, so that JPEG keeps it, and different in every corner."""
    x, y = np.linspace(0, 200, width), np.linspace(0, 200, height)[:, None]
    planes = np.broadcast_arrays(x, y, (x + y) / 2)
    return Image.fromarray(np.stack(planes, axis=2).astype(np.uint8))


def pixels(photograph: Photograph) -> NDArray[np.int64]:
    assert photograph.image.mode == "RGB"
    return np.asarray(photograph.image).astype(np.int64)


def sixteen(image: Image.Image) -> Image.Image:
    return Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257)


def see_through(image: Image.Image) -> Image.Image:
    return Image.merge("RGBA", (*image.split(), image.getchannel(0)))


MODES: dict[str, tuple[Callable[[Image.Image], Image.Image], str, dict[str, Any]]] = {
    "grey": (lambda image: image.convert("L"), "PNG", {}),
    "grey, 16 bits": (sixteen, "PNG", {}),
    "grey, 16 bits, TIFF": (sixteen, "TIFF", {}),
    "grey, floats to 255": (lambda image: image.convert("F"), "TIFF", {}),
    "grey, floats to 1": (
        lambda image: image.convert("F").point(lambda value: value / 255),
        "TIFF",
        {},
    ),
    "grey and alpha": (lambda image: image.convert("LA"), "PNG", {}),
    "alpha": (see_through, "PNG", {}),
    "palette": (lambda image: image.quantize(256), "PNG", {}),
    "palette, one transparent": (lambda image: image.quantize(256), "PNG", {"transparency": 3}),
    "palette, all transparent": (
        lambda image: image.quantize(256),
        "PNG",
        {"transparency": bytes(range(256))},
    ),
    "GIF": (lambda image: image.quantize(256), "GIF", {}),
    "CMYK": (lambda image: image.convert("CMYK"), "JPEG", {"quality": 95}),
}


@pytest.mark.parametrize("name", MODES)
def test_every_mode_becomes_rgb(saved: Saved, name: str) -> None:
    """Alpha is dropped, as Darknet does."""
    convert, kind, options = MODES[name]
    path = saved(convert(gradient()), kind, **options)
    result = decode(path, LIMITS)
    expected = gradient().convert("L").convert("RGB") if "grey" in name else gradient()
    assert result.size == (WIDTH, HEIGHT)
    assert np.abs(pixels(result) - np.asarray(expected)).mean() < 4


@pytest.mark.parametrize("times", [2, 3, 4, 6])
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_a_large_jpeg_is_decoded_smaller(saved: Saved, times: int, mode: str) -> None:
    """A half, a quarter or an eighth, whatever fits; its own size is known."""
    size = WIDTH * times, HEIGHT * times
    result = decode(saved(gradient(*size).convert(mode), "JPEG"), LIMITS)
    scale = {2: 2, 3: 4, 4: 4, 6: 8}[times]
    assert result.size == size
    assert result.image.size == (-(-size[0] // scale), -(-size[1] // scale))
    expected = gradient(*result.image.size).convert(mode).convert("RGB")
    assert np.abs(pixels(result) - np.asarray(expected)).mean() < 4


def test_a_jpeg_within_the_limit_is_decoded_whole(saved: Saved) -> None:
    path = saved(gradient(), "JPEG")
    with Image.open(path) as image:
        np.testing.assert_array_equal(pixels(decode(path, LIMITS)), np.asarray(image))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_large_jpeg_is_upright(saved: Saved, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = saved(gradient(2 * WIDTH, 2 * HEIGHT), "JPEG", exif=exif)
    whole, small = decode(path, replace(LIMITS, max_pixels=4 * LIMIT)), decode(path, LIMITS)
    assert small.size == whole.size == whole.image.size
    assert small.image.size == (whole.size[0] // 2, whole.size[1] // 2)
    assert np.abs(pixels(small) - np.asarray(whole.image.resize(small.image.size))).mean() < 4


@pytest.mark.parametrize("orientation", [1, 6])
def test_a_jpeg_is_never_decoded_smaller_than_it_may_be(saved: Saved, orientation: int) -> None:
    """Upright, as the network sees it."""
    path = saved(gradient(2 * WIDTH, 2 * HEIGHT), "JPEG", exif=with_exif(0, orientation))
    asked = list[tuple[int, int]]()

    def may_become(size: tuple[int, int]) -> bool:
        asked.append(size)
        return len(asked) == 1

    half = (WIDTH, HEIGHT) if orientation == 1 else (HEIGHT, WIDTH)
    limits = replace(LIMITS, may_become=may_become)
    assert decode(path, limits).image.size == half
    with pytest.raises(InvalidRequestError, match="122x86 pixels; the limit is"):
        decode(path, limits)
    assert asked == [half, half]


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_size_is_that_of_the_upright_picture(saved: Saved, kind: str, orientation: int) -> None:
    """Pillow turns a TIFF by itself, others are turned here; none is turned twice."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    result = decode(saved(gradient(), kind, exif=exif), LIMITS)
    assert result.size == result.image.size
    assert result.size == ((HEIGHT, WIDTH) if orientation > 4 else (WIDTH, HEIGHT))


@pytest.mark.parametrize("orientation", range(2, 9))
def test_a_picture_is_there_twice_while_it_is_turned(saved: Saved, orientation: int) -> None:
    upright = decoding_bytes(saved(gradient(), "JPEG"), LIMITS)
    turned = decoding_bytes(saved(gradient(), "JPEG", exif=with_exif(0, orientation)), LIMITS)
    assert turned == 2 * upright == 2 * 4 * LIMIT


def one_component(data: bytes) -> bytes:
    """Let the first scan say that it has one component of the three."""
    return data.replace(b"\xff\xda\x00\x0c\x03", b"\xff\xda\x00\x0c\x01")


@pytest.mark.parametrize(
    ("kind", "options", "change"),
    [
        ("PNG", {}, bytes),
        ("JPEG", {"progressive": True}, bytes),
        ("JPEG", {}, one_component),
    ],
)
def test_what_would_not_be_smaller_is_refused(
    saved: Saved, kind: str, options: dict[str, Any], change: Callable[[bytes], bytes]
) -> None:
    path = saved(gradient(2 * WIDTH, 2 * HEIGHT), kind, **options)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(InvalidRequestError, match=f"122x86 pixels; the limit is {LIMIT} in all"):
        decode(path, LIMITS)


def test_a_header_of_a_billion_pixels_is_refused_in_our_words(tmp_path: Path) -> None:
    size = 30_000
    header = b"BM" + struct.pack("<IHHIIiiHHIIiiII", 54, 0, 0, 54, 40, size, size, 1, 24, *[0] * 6)
    (tmp_path / "bomb.bmp").write_bytes(header)
    for read in (decoding_bytes, decode):
        with pytest.raises(InvalidRequestError, match=f"the limit is {LIMIT} in all") as refused:
            read(tmp_path / "bomb.bmp", LIMITS)
        assert "bomb" not in str(refused.value)


def test_eight_times_smaller_is_the_end(saved: Saved) -> None:
    with pytest.raises(InvalidRequestError, match="the limit"):
        decode(saved(gradient(9 * WIDTH, 9 * HEIGHT), "JPEG"), LIMITS)


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"restart_marker_blocks": 2}])
def test_a_jpeg_without_its_end_is_read_if_all_pixels_are_there(
    saved: Saved, options: dict[str, Any]
) -> None:
    """Without its last byte of pixels it is damaged, wherever that ends: at a restart, or at a scan."""
    path = saved(gradient(), "JPEG", **options)
    data, expected = path.read_bytes(), pixels(decode(path, LIMITS))
    for missing in (1, 2):
        result = decode(io.BytesIO(data[:-missing]), LIMITS)
        np.testing.assert_array_equal(pixels(result), expected)
    for missing in range(3, 60):
        with pytest.raises(InvalidRequestError, match="truncated"):
            decode(io.BytesIO(data[:-missing]), LIMITS)


def test_a_large_mpo_is_decoded_smaller(saved: Saved) -> None:
    image = gradient(2 * WIDTH, 2 * HEIGHT)
    path = saved(image, "MPO", save_all=True, append_images=[image])
    assert decode(path, LIMITS).image.size == (WIDTH, HEIGHT)


def test_a_jpeg_with_a_profile_of_over_a_megabyte_is_read(saved: Saved) -> None:
    path = saved(gradient(), "JPEG", icc_profile=bytes(2 << 20))
    assert decode(path, LIMITS).size == (WIDTH, HEIGHT)
    assert decoding_bytes(path, LIMITS) == decoding_bytes(saved(gradient(), "JPEG"), LIMITS)


def test_a_damaged_large_jpeg_is_refused(saved: Saved) -> None:
    path = saved(gradient(2 * WIDTH, 2 * HEIGHT), "JPEG")
    data = path.read_bytes()
    for length in range(2, len(data), 97):
        path.write_bytes(data[:length])
        with pytest.raises(InvalidRequestError) as caught:
            decode(path, LIMITS)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", MODES)
def test_memory_is_known_before_a_pixel_is_decoded(saved: Saved, name: str) -> None:
    """With as much a picture is decoded, with less it is refused, and nothing was decoded to find out."""
    convert, kind, options = MODES[name]
    path = saved(convert(gradient()), kind, **options)
    needed = decoding_bytes(path, LIMITS)
    assert LIMIT * 4 <= needed <= LIMIT * 20
    exact = replace(LIMITS, max_bytes=needed)
    assert decode(path, exact).size == (WIDTH, HEIGHT)
    short = replace(LIMITS, max_bytes=needed - 1)
    if kind == "JPEG":
        assert decode(path, short).image.size < (WIDTH, HEIGHT)
        return
    for read in (decoding_bytes, decode):
        with pytest.raises(TooLargeError, match=r"61x43 pixels.*request_memory"):
            read(path, short)


def test_a_process_that_decodes(saved: Saved) -> None:
    """What Pillow warns of is on no standard error; and a file that is no picture has nothing imported.

    Pillow would import all of its plugins to look for one, a megabyte that stays.
    """
    convert, kind, options = MODES["palette, all transparent"]
    path = saved(convert(gradient()), kind, **options)
    code = (
        "import sys; from pathlib import Path; from server.requests import pictures\n"
        "assert 'PIL' not in sys.modules\n"
        "before = set(sys.modules)\n"
        "try: pictures.decode(Path(sys.argv[1]), pictures.PictureLimits(1, 1))\n"
        "except pictures.InvalidRequestError: print(len(set(sys.modules) - before))\n"
        "pictures.decode(Path(sys.argv[2]), pictures.PictureLimits(1 << 20, 1 << 24))\n"
    )
    command = [sys.executable, "-c", code, __file__, str(path)]
    root = Path(__file__).parents[3]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root)
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_a_ppm_as_text_is_refused_by_its_header(tmp_path: Path) -> None:
    """Pillow decodes it in Python: six megapixels would take seconds."""
    path = tmp_path / "plain.ppm"
    path.write_bytes(b"P3 2 1 255\n1 2 3 4 5 6\n")
    for read in (decoding_bytes, decode):
        with pytest.raises(InvalidRequestError, match="binary"):
            read(path, LIMITS)


def test_a_jpeg_too_flat_to_be_decoded_smaller_is_refused_by_its_size(saved: Saved) -> None:
    with pytest.raises(InvalidRequestError, match="10000x5 pixels"):
        decode(saved(gradient(10_000, 5), "JPEG"), LIMITS)


def with_exif(n_bytes: int = 0, orientation: int = 1) -> Image.Exif:
    """As cameras write it, with a small picture of so many bytes in it."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    exif[0x927C] = b"\0" * n_bytes
    return exif


BEGINNINGS: dict[str, tuple[str, dict[str, Any], int]] = {
    "JPEG": ("JPEG", {}, 700),
    "JPEG, progressive": ("JPEG", {"progressive": True}, 700),
    "JPEG of a camera": ("JPEG", {"exif": with_exif(50_000, 6)}, 51_000),
    "PNG": ("PNG", {}, 100),
    "PNG, turned": ("PNG", {"exif": with_exif(orientation=6)}, 200),
    "GIF": ("GIF", {}, 1000),
    "BMP": ("BMP", {}, 100),
    "PPM": ("PPM", {}, 100),
    "WEBP": ("WEBP", {"lossless": True}, 1 << 30),
    "TIFF": ("TIFF", {}, 1 << 30),
}


@pytest.mark.parametrize("name", BEGINNINGS)
def test_what_opens_of_a_beginning_is_what_opens_of_all(name: str) -> None:
    """And it is decoded when the rest has come; where its header ends, it does open."""
    kind, options, header_bytes = BEGINNINGS[name]
    whole = io.BytesIO()
    gradient(300, 200).save(whole, kind, **options)
    data, limits = whole.getvalue(), PictureLimits(1 << 20, 1 << 30)
    expected = OpenedPicture(io.BytesIO(data), limits)
    needed, wanted = expected.needed_bytes, expected.decode()
    for cut in {0, 1, 10, 100, 1000, header_bytes - 1, header_bytes, len(data) // 2, len(data) - 1}:
        if cut >= len(data):
            continue
        file = io.BytesIO(data[:cut])
        opened = OpenedPicture.begun(file, limits)
        assert opened is not None or cut < header_bytes
        if opened is None:
            continue
        file.seek(0, io.SEEK_END)
        file.write(data[cut:])
        assert opened.needed_bytes == needed
        result = opened.decode()
        assert result.size == wanted.size
        np.testing.assert_array_equal(pixels(result), pixels(wanted))


def test_a_beginning_that_is_over_a_limit_is_refused() -> None:
    file = io.BytesIO()
    gradient(300, 200).save(file, "PNG")
    begun = file.getvalue()[:200]
    with pytest.raises(InvalidRequestError, match="300x200 pixels"):
        OpenedPicture.begun(io.BytesIO(begun), PictureLimits(100, 1 << 30))
    with pytest.raises(TooLargeError, match="300x200 pixels"):
        OpenedPicture.begun(io.BytesIO(begun), PictureLimits(1 << 20, 1000))


def test_a_png_is_turned_as_it_says_before_its_pixels() -> None:
    """For what stands behind them it would have to be decoded before there is memory for that."""
    file = io.BytesIO()
    gradient().save(file, "PNG", exif=with_exif(orientation=6))
    data = file.getvalue()
    at = data.index(b"eXIf") - 4
    size = int.from_bytes(data[at : at + 4]) + 12
    behind = data[:at] + data[at + size : -12] + data[at : at + size] + data[-12:]
    assert decode(io.BytesIO(data), LIMITS).size == (HEIGHT, WIDTH)
    assert decode(io.BytesIO(behind), LIMITS).size == (WIDTH, HEIGHT)


def test_where_pillow_has_no_memory_the_next_picture_is_decoded(
    saved: Saved, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(gradient(), "PNG")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "server.requests.decoding", None)  # as where mapping it fails
        with pytest.raises(MemoryError, match="Pillow"):
            decode(path, LIMITS)
    assert decode(path, LIMITS).size == (WIDTH, HEIGHT)
