"""The header: what a program that uses the network includes."""

from pipeline.export_c.writing.api import C_TYPES, Api, elements
from pipeline.export_c.writing.expressions import number
from pipeline.export_c.writing.names import comment
from pipeline.export_c.writing.weights import HEADER_BYTES, VERSION, Stored


def header(api: Api, made_by: str, arena_bytes: int, buffer_bytes: int, stored: Stored) -> str:
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
        lines.append(f"{begin}_SIZE {elements(port)} /* {comment(what)} */")
        how = api.network.quantised.get(port.name)
        if how is not None:
            lines += [
                f"{begin}_SCALE {number(how.scale)} /* a byte is scale * (byte - zero) */",
                f"{begin}_ZERO {how.zero}",
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
