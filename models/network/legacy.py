# ruff: noqa
# mypy: ignore-errors
"""Tables that were, made of the catalogue: gone when nothing imports them any more."""

from typing import Any


def old(name: str) -> Any:
    """Return the table ``name``."""
    if name.startswith("__"):
        raise AttributeError(name)
    from models.network.catalogue import (
        OPERATORS as O,
    )
    from models.network.catalogue import (
        functions,
        read_operator,
    )
    from models.network.names import Op
    from models.runtime.kernels import KERNELS

    rows = list(O.values())
    bare = lambda rows: frozenset(r.name.op_type for r in rows)  # noqa: E731
    arithmetic = {
        "add",
        "subtract",
        "multiply",
        "divide",
        "modulo",
        "power",
        "larger",
        "smaller",
        "scale_negative",
    }
    match name:
        case "POINTWISE":
            return bare(r for r in rows if r.function)
        case "UNEVEN":
            return frozenset(k for k, v in KERNELS.items() if not v.is_even and O[k].function)
        case "OF_BYTES":
            return bare(r for r in rows if r.on_bytes and r.access == "elementwise")
        case "CONVOLUTIONS":
            return ("Conv", "FusedConv")
        case "GEMMS":
            return ("Gemm", "FusedGemm")
        case "RESHAPES":
            return {r.name: None for r in rows if r.reshapes}
        case "LAYERS":
            return frozenset(
                r.name for r in rows if r.layer and r.name is r.of and r.elements != "quantised"
            )
        case "SCALES":
            return {
                r.name.op_type: r.scales(9) for r in rows if r.elements == "quantised" or r.on_bytes
            }
        case "ACTIVATIONS":
            return tuple(k for k, v in KERNELS.items() if v.is_absorbed)
        case "COMMUTE":
            return frozenset(("add", "multiply", "larger", "smaller"))
        case "TAKEN_APART":
            return frozenset(("hard_swish", "mish"))
        case "PAIRS":
            return {r.name: r.function for r in rows if r.function in arithmetic}
        case "SPELLINGS":

            class S:
                def __init__(self, r):
                    self.kind, self.parameters = (
                        r.function,
                        tuple((k, v) for k, v in r.attributes.items()),
                    )

            return {
                r.name: S(r)
                for r in rows
                if r.function and r.function not in arithmetic and r.name not in ("Clip", "Gelu")
            }
        case "TABLE":
            return Op.ByteTable
        case "READERS":
            return {r.name: r.read for r in rows if r.read}
        case "activation_of":
            return functions.activation_of
        case "read_operator":
            return read_operator
    raise AttributeError(name)
