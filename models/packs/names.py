"""What users name of a pack: what it is for, how weights lie in its file."""

from typing import Literal, get_args

#: The name of the machine that compiles, whatever its instruction set.
CPU = "cpu"
#: What ``compile --store`` asks for.
Store = Literal["fp32", "fp16", "bf16", "int8", "lossless"]
STORES: tuple[Store, ...] = get_args(Store)


def loses_bits(store: Store) -> bool:
    """Return whether weights stored so are others than those of the source."""
    return store in ("fp16", "bf16", "int8")
