"""What users name of a pack: what it is for, how weights lie in its file."""

from typing import Literal, get_args

#: Of one pack; each is compiled and checked, and open while it is served.
MAX_SHAPES = 16
#: The record of a pack, or of its largest shape.
MANIFEST = "manifest.json"


def shape_file(index: int) -> str:
    """Return the file of shape ``index`` of a pack, counted from the largest, which is 0."""
    return f"shape-{index}.json" if index else MANIFEST


#: Those of all shapes but the largest.
SHAPE_FILES = tuple(map(shape_file, range(1, MAX_SHAPES)))

#: The name of the machine that compiles, whatever its instruction set.
CPU = "cpu"
#: What ``compile --store`` asks for.
Store = Literal["fp32", "fp16", "bf16", "int8", "lossless"]
STORES: tuple[Store, ...] = get_args(Store)


def loses_bits(store: Store) -> bool:
    """Return whether weights stored so are others than those of the source."""
    return store in ("fp16", "bf16", "int8")
