"""What a caller sees: names, sizes, functions and errors; and the header, which says all of it."""

import math
from dataclasses import dataclass
from typing import Literal

from models.network.node import NamedTensor
from pipeline.export_c.network.network import Network
from pipeline.export_c.writing.c_text import C_TYPES, blocks, comment, identifier, number
from pipeline.export_c.writing.stored_weights import HEADER_BYTES, VERSION, StoredWeights

Weights = Literal["const", "callback"]
Ports = Literal["caller", "arena"]
Inputs = Literal["memory", "callback"]


@dataclass(frozen=True)
class Api:
    """``prefix`` begins every name; ``names``: the identifier of each input and output, in order."""

    prefix: str
    network: Network
    weights: Weights
    ports: Ports
    inputs: Inputs
    names: dict[str, str]

    @property
    def reads(self) -> bool:
        """Whether a callback reads the weights."""
        return self.weights == "callback"

    @property
    def asks(self) -> bool:
        """Whether a callback brings the rows of the input."""
        return self.inputs == "callback"

    @property
    def pixel_type(self) -> str:
        """What the callback of pixels writes: floats, or bytes."""
        return "float" if any(port.dtype == "float32" for port in self.network.inputs) else "void"

    @property
    def given(self) -> tuple[NamedTensor, ...]:
        """The inputs that lie somewhere as a whole."""
        return () if self.asks else self.network.inputs

    @property
    def run(self) -> str:
        """The declaration of the function that computes."""
        parameters = [f"{self.prefix}_read read", "void *context"] if self.reads else []
        parameters += [f"{self.prefix}_pixels pixels", "void *camera"] if self.asks else []
        if self.ports == "caller":
            parameters += [f"const {_pointer(port, self.names)}" for port in self.given]
            parameters += [_pointer(port, self.names) for port in self.network.outputs]
        return f"int {self.prefix}_run({', '.join(parameters) or 'void'})"

    @property
    def pointers(self) -> list[str]:
        """The arguments of it that must not be NULL."""
        named = [*(["read"] if self.reads else []), *(["pixels"] if self.asks else [])]
        if self.ports == "caller":
            named += [self.names[port.name] for port in (*self.given, *self.network.outputs)]
        return named

    @property
    def check(self) -> str:
        """The declaration of the function that reads all weights once."""
        return f"int {self.prefix}_check({self.prefix}_read read, void *context)"

    def accessors(self) -> list[tuple[NamedTensor, str]]:
        """Return each port that lies in the arena with the declaration of what returns it."""
        if self.ports == "caller":
            return []
        ports = [(port, "") for port in self.given]
        ports += [(port, "const ") for port in self.network.outputs]
        return [
            (port, f"{const}{C_TYPES[port.dtype]} *{self.prefix}_{self.names[port.name]}(void)")
            for port, const in ports
        ]


def _pointer(port: NamedTensor, names: dict[str, str]) -> str:
    return f"{C_TYPES[port.dtype]} *{names[port.name]}"


def api_of(
    network: Network, prefix: str, weights: Weights, ports: Ports, inputs: Inputs = "memory"
) -> Api:
    """Return what a caller sees of ``network``."""
    names: dict[str, str] = {}
    for port in (*network.inputs, *network.outputs):
        names.setdefault(
            port.name, identifier(port.name, {*blocks(), *names.values(), "run", "pixels"})
        )
    return Api(prefix, network, weights, ports, inputs, names)


def header(
    api: Api, made_by: str, arena_bytes: int, buffer_bytes: int, stored: StoredWeights
) -> str:
    """Return the text of the header.

    Args:
        api: what a caller sees.
        made_by: version and model, for the first comment.
        arena_bytes: of the static arena.
        buffer_bytes: of the static buffer that weights are read into; 0: they are constants.
        stored: the weights.
    """
    prefix, upper = api.prefix, api.prefix.upper()
    lines = [
        f"/* {comment(made_by)}",
        " *",
        *(f" * {line}" for line in _contract(api)),
        " */",
        f"#ifndef {upper}_H",
        f"#define {upper}_H",
        "",
        "#include <stddef.h>",
        "#include <stdint.h>",
        "",
        "#ifdef __cplusplus",
        'extern "C" {',
        "#endif",
        "",
        f"#define {upper}_VERSION {VERSION}",
        f"#define {upper}_ARENA_BYTES {arena_bytes} /* static, of activations */",
        f"#define {upper}_WEIGHT_BYTES {stored.weight_bytes} /* {'read' if api.reads else 'constant'} */",
    ]
    if api.reads:
        lines += [
            f"#define {upper}_BUFFER_BYTES {buffer_bytes} /* static, of weights at a time */",
            f"#define {upper}_WEIGHTS_FILE_BYTES {stored.n_bytes} /* {HEADER_BYTES} of them a header */",
        ]
    for port in (*api.network.inputs, *api.network.outputs):
        name = api.names[port.name]
        what = f"{C_TYPES[port.dtype]} {list(port.shape)}, {port.name}"
        begin = f"#define {upper}_{name.upper()}"
        lines.append(f"{begin}_SIZE {math.prod(port.shape)} /* {comment(what)} */")
        how = api.network.quantised.get(port.name)
        if how is not None:
            lines += [
                f"{begin}_SCALE {number(how.one)} /* a byte is scale * (byte - zero) */",
                f"{begin}_ZERO {how.plain_zero}",
            ]
    lines += ["", "enum {", *(f"    {upper}_{line}" for line in _errors(api)), "};", ""]
    if api.reads:
        lines += [
            f"/* Puts bytes [offset, offset + length) of {prefix}.weights at to; not 0: it could not. */",
            f"typedef int (*{prefix}_read)(void *context, uint64_t offset, void *to, size_t length);",
            "",
            "/* Reads all weights once and computes their checksum. */",
            f"{api.check};",
            "",
        ]
    if api.asks:
        lines += [
            "/* Puts row `row` of the image, from `column` on, at to: `columns` numbers of each channel,",
            "   one channel after the other. Not 0: it could not. */",
            f"typedef int (*{prefix}_pixels)(void *camera, int row, int column, int columns, "
            f"{api.pixel_type} *to);",
            "",
        ]
    for port, declaration in api.accessors():
        lines += [f"{declaration}; /* {comment(str(list(port.shape)))}, in the arena */"]
    lines += [f"{api.run};", "", "#ifdef __cplusplus", "}", "#endif", "", "#endif"]
    return "\n".join(lines) + "\n"


def _contract(api: Api) -> list[str]:
    said = [
        "Tensors are contiguous, the last dimension the fastest. Nothing is allocated: one run at a time.",
    ]
    if api.ports == "caller":
        said.append(
            "Inputs are not changed. Outputs are written from early on, and overlap nothing else."
        )
    else:
        said += [
            "Inputs and outputs lie in the arena: write all inputs before each run, which writes over",
            "them; outputs are there until the next one.",
        ]
    if api.asks:
        said += [
            "Rows of the image are asked for while it runs, from the top on for each convolution that",
            "reads it; some of them again, for the next rows or for another part of the image.",
        ]
    if api.reads:
        said += [
            f"Weights are read while it runs, in ranges of {api.prefix}.weights, one after the other, each",
            "before it is needed: there is no second buffer to read ahead. A run looks at the size and the",
            f"checksum in the file's header; {api.prefix}_check also computes the checksum.",
        ]
    return said


def _errors(api: Api) -> list[str]:
    errors = ["OK = 0", "NO_POINTER = 1"]
    said = ["", "an argument is NULL"]
    if api.reads:
        errors += ["READ_FAILED = 2", "WRONG_WEIGHTS = 3"]
        said += ["the callback said so", "not the weights of this source, or damaged"]
    if api.asks:
        errors += ["INPUT_FAILED = 4"]
        said += ["the callback of pixels said so"]
    commas = [*[","] * (len(errors) - 1), ""]
    return [
        f"{error}{comma}{f' /* {why} */' * bool(why)}"
        for error, comma, why in zip(errors, commas, said, strict=True)
    ]
