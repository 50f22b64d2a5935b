"""What a manifest says of layers that were taken apart must be possible (docs/pack-format.md)."""

from pathlib import Path

from models.errors import PackError
from models.packs.manifest import Manifest

_RANK = 4


def check_window_products(path: Path, manifest: Manifest) -> None:
    """Check the products on windows of the manifest in ``path``.

    Raises:
        PackError: one is of no convolution; the message names it.
    """
    values = {value.name: value for value in manifest.values}
    for number, item in enumerate(manifest.window_products):
        where = f"{path}: window_products.{number}"
        for name in (item.source, item.output):
            if name not in values or values[name].is_loose:
                raise PackError(f"{where}: {name!r} is no value of a known size")
        source, output = (values[name].shape for name in (item.source, item.output))
        if {len(source), len(output)} != {_RANK} or source[0] != output[0]:
            raise PackError(f"{where}: {list(source)} and {list(output)} are no images")
        if any(axis.factor != 1 for axis in item.windows):
            raise PackError(f"{where}.windows: no convolution makes elements that repeat")
        made = [axis.made(n) for axis, n in zip(item.windows, source[1:3], strict=True)]
        if made != list(output[1:3]):
            raise PackError(f"{where}.windows: they make {made} pixels, not {list(output[1:3])}")
