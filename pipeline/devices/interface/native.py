"""The table of the native library: its kernels, limits, structures and functions.

``python -m tools.c_headers`` writes elementwise/kernels/interface.h from it, whose
assertions say to the compiler where ctypes has each member.
"""

from typing import get_args

from models.network.activations import Arithmetic, Kind
from models.network.names import Op
from models.network.operators.quantised import BYTES, MAX_CONCATENATED, MAX_LAYERS
from models.packs.records.spans import Encoding
from models.packs.storing import BLOCK_NUMBERS, DICTIONARY_BYTES, MAX_BITS, PLANES, WHOLE_BITS
from pipeline.devices.interface.rows import (
    Constants,
    CTypes,
    Entry,
    Enumeration,
    KernelList,
    Members,
    NativeFunction,
    Structure,
    Texts,
)

# Kernels on elements.

_OF_TWO: tuple[Arithmetic, ...] = (
    *("add", "subtract", "multiply", "divide", "modulo", "larger", "smaller"),
)
#: Of one value and a number; less a number is plus another one.
_WITH_A_NUMBER: tuple[Arithmetic, ...] = (
    *("add", "multiply", "divide", "modulo", "larger", "smaller"),
)
_OF_ONE: tuple[Kind, ...] = (
    *("negative", "clip", "leaky_relu", "hard_sigmoid", "hard_swish", "sigmoid", "silu"),
    *("softsign", "tanh", "mish", "celu", "erf", "gelu"),
)
#: Their names in C, in the order of the library's tables.
OPERATORS = ("copy", *_OF_TWO, *(f"{kind}_number" for kind in _WITH_A_NUMBER), *_OF_ONE)
#: The place of a kernel among OPERATORS, by kind and how many values it reads.
OPERATOR_OF: dict[tuple[str, int], int] = {
    ("copy", 1): OPERATORS.index("copy"),
    ("relu", 1): OPERATORS.index("clip"),
    **{(kind, 2): OPERATORS.index(kind) for kind in _OF_TWO},
    **{(kind, 1): OPERATORS.index(f"{kind}_number") for kind in _WITH_A_NUMBER},
    **{(kind, 1): OPERATORS.index(kind) for kind in _OF_ONE},
}

# Limits: beyond them ONNX Runtime computes. A chain has any number of steps.

#: Tensors, and values in between that live at once, that one chain has at most.
MAX_TENSORS = 12
MAX_BLOCKS = 6
#: Axes of the results of a chain that is a node of ONNX Runtime.
MAX_AXES = 8
#: Elements from which on several threads compute a chain.
WORTH_SHARING = 16 << 10
#: What turns a signed byte into an unsigned one, by exclusive or.
FLIP = 0x80
#: Rows of queries that a thread computes attention of, keys of a tile, and the largest head.
ATTENTION_ROWS, ATTENTION_KEYS, MAX_HEAD = 192, 60, 128
#: Operators of ours in graphs of ONNX Runtime: their domain, their names, the attribute of a chain.
DOMAIN, CHAIN, JOB, PROGRAM = "layerstream", "Chain", "Job", "program"
ATTENTION = Op.MultiHeadAttention.op_type

_CHAINS: tuple[Entry, ...] = (
    KernelList(
        "By the names of their kernels: a kind of models/network/activations.py each; ..._number: of one "
        "value and p.",
        "OPERATORS",
        "N_OPERATORS",
        OPERATORS,
    ),
    Constants(
        "Tensors of a chain, and blocks of memory in between; axes of a node. A chain has any number of "
        "steps.",
        {"MAX_TENSORS": MAX_TENSORS, "MAX_BLOCKS": MAX_BLOCKS, "MAX_AXES": MAX_AXES},
    ),
    Constants(
        "Elements from which on several threads compute a chain.",
        {"WORTH_SHARING": WORTH_SHARING},
    ),
    Texts(
        "Operators of ours in graphs of ONNX Runtime, and the attribute of a chain.",
        {
            "DOMAIN_NAME": DOMAIN,
            "CHAIN_NAME": CHAIN,
            "JOB_NAME": JOB,
            "ATTENTION_NAME": ATTENTION,
            "PROGRAM_NAME": PROGRAM,
        },
    ),
    Constants(
        "Rows of queries that a thread computes attention of, keys of a tile, and the largest head.",
        {
            "ATTENTION_ROWS": ATTENTION_ROWS,
            "ATTENTION_KEYS": ATTENTION_KEYS,
            "MAX_HEAD": MAX_HEAD,
        },
    ),
    Structure(
        "One tensor of a chain: as many elements as the chain has, or one for each channel: element i of "
        "the chain takes number (i / plane) * width + i % width of it. `plane` 0: the first kind.",
        "tensor",
        (Members("float *", "data", ""), Members("size_t", "plane width", "")),
    ),
    Structure(
        "Places below MAX_TENSORS are tensors, the others blocks of memory that is in between.",
        "step",
        (Members("int32_t", "operator to a b", ""), Members("float", "p q", "")),
    ),
    Structure(
        "A chain: steps on elements that follow each other, and the tensors that they read and write.",
        "chain",
        (
            Members("size_t", "n_elements", ""),
            Members("int32_t", "n_steps", ""),
            Members("const struct step *", "steps", ""),
            Members("struct tensor[MAX_TENSORS]", "tensors", ""),
        ),
    ),
)

_EXPANSION: tuple[Entry, ...] = (
    Enumeration(
        "How stored weights lie (models/packs/storing.py); bytes of no part are zero.",
        "encoding",
        tuple(name.upper() for name in ("zero", *get_args(Encoding))),
        "N_ENCODINGS",
    ),
    Constants(
        "",
        {
            "N_PLANES": PLANES,
            "BLOCK_NUMBERS": BLOCK_NUMBERS,
            "DICTIONARY_BYTES": DICTIONARY_BYTES,
            "MAX_BITS": MAX_BITS,
            "WHOLE_BITS": WHOLE_BITS,
        },
    ),
    Structure(
        "`length` bytes at `to` of the target, made of what is at `start` of the source. Of INT8 "
        "these are numbers [channels / block][..][block], with `scales` at another place of the "
        "source. Of PLANES whole blocks of numbers: `bits` of a code (WHOLE_BITS: the byte itself) "
        "and `exceptions` of each plane; `kept` of the numbers, those that are not zero (0: all).",
        "stretch",
        (
            Members("int32_t", "encoding", ""),
            Members("uint32_t", "block", ""),
            Members("size_t", "channels to length start scales kept", ""),
            Members("size_t[N_PLANES]", "exceptions", ""),
            Members("uint8_t[N_PLANES]", "bits", ""),
        ),
    ),
)

_LAYERS: tuple[Entry, ...] = (
    Constants("What turns a signed byte into an unsigned one, by exclusive or.", {"FLIP": FLIP}),
    Constants("Of a table: one for each byte.", {"TABLE_BYTES": BYTES}),
    Constants(
        "Layers of a task, and tensors that lie one behind the other in what the first of them reads.",
        {"MAX_LAYERS": MAX_LAYERS, "MAX_CONCATENATED": MAX_CONCATENATED},
    ),
    Structure(
        "Numbers that make a byte of another: their places, since weights and scales may be streamed. "
        "`flip`: FLIP of signed bytes, else 0.",
        "scaled",
        (
            Members("const float *", "scale", ""),
            Members("const uint8_t *", "zero", ""),
            Members("int32_t", "flip", ""),
        ),
    ),
    Structure(
        "A convolution of `channels` to `filters`, or of each channel by itself (`depthwise`). Weights are "
        "[filters, channels, kernel_y, kernel_x], or [channels, filters] (`by_inputs`, one pixel). A scale "
        "and a zero point for all filters, or for each (`scales_apart`, `zeros_apart`).",
        "layer",
        (
            Members("const uint8_t *", "weights", ""),
            Members("const int32_t *", "bias", "NULL: none"),
            Members("struct scaled", "given weight made", ""),
            Members("int32_t", "scales_apart zeros_apart by_inputs depthwise", ""),
            Members("int32_t", "channels filters", ""),
            Members("int32_t", "kernel_y kernel_x stride_y stride_x step_y step_x above left", ""),
            Members("int32_t", "height width made_height made_width", ""),
        ),
    ),
    Structure(
        "A sum of two tensors; `over`: which of them the last layer makes.",
        "addition",
        (
            Members("struct scaled", "first second made", ""),
            Members("const uint8_t *", "other", "NULL: nothing is added"),
            Members("int32_t", "over", ""),
        ),
    ),
    Structure(
        "Planes of floats of which a rectangle is quantised and turned: channels lie last then.",
        "picture",
        (
            Members("const float *", "planes", "NULL: the first layer reads bytes"),
            Members("size_t", "plane line", "floats from one plane, one line, to the next"),
            Members(
                "int32_t",
                "first_line first_column",
                "of the rectangle; the line is the one that `planes` begins with",
            ),
            Members("struct scaled", "made", ""),
        ),
    ),
    Structure(
        "Tensors that lie one behind the other in the channels that the first layer reads, all in one "
        "scale.",
        "joined",
        (
            Members("int32_t", "count", "0: it reads one, where it lies"),
            Members("int32_t[MAX_CONCATENATED]", "channels", ""),
            Members("const uint8_t *[MAX_CONCATENATED]", "parts", ""),
            Members("struct scaled[MAX_CONCATENATED]", "given", ""),
            Members("struct scaled", "made", ""),
        ),
    ),
    Structure(
        "The largest bytes of windows of what a layer makes; windows may begin above and left of it.",
        "pool",
        (
            Members("int32_t", "kernel_y kernel_x", "0: there is none"),
            Members("int32_t", "stride_y stride_x above left made_height made_width", ""),
        ),
    ),
    Structure(
        "One layer, and maxima of it, or a sum; or layers of which one is depthwise: some channels of it "
        "at a time (`group`), some rows of the last one at a time (`rows`), whose sums are in memory of "
        "the task. Rows [first_row, end_row) of the last layer, or of its maxima, are made. `n_parts` may "
        "run at once, in memory of `n_bytes` with places for `n_places`; that and `cost`, about the "
        "nanoseconds of one part alone, says integers_fit. What follows `cost` up to `memory` is of one "
        "run.",
        "task",
        (
            Members("int32_t", "n_layers depthwise", "which of the layers is depthwise; -1: none"),
            Members("int32_t", "group rows first_row end_row n_parts n_places", ""),
            Members("size_t", "n_bytes", ""),
            Members("double", "cost", ""),
            Members("int32_t", "failed state next ended", ""),
            Members("uint8_t *", "memory", ""),
            Members("const uint8_t *", "given", ""),
            Members("uint8_t *", "made", ""),
            Members(
                "const uint8_t *",
                "table",
                "what bytes of a layer alone, or of its maxima, become; NULL: they stay",
            ),
            Members("struct picture", "picture", ""),
            Members("struct joined", "joined", ""),
            Members("struct addition", "addition", ""),
            Members("struct pool", "pool", ""),
            Members("struct layer[MAX_LAYERS]", "layers", ""),
        ),
    ),
    Structure(
        "The average of each channel of `pixels` pixels.",
        "average",
        (
            Members("const uint8_t *", "given", ""),
            Members("uint8_t *", "made", ""),
            Members("struct scaled", "source target", ""),
            Members("int32_t", "channels pixels", ""),
        ),
    ),
)

_FUNCTIONS: tuple[Entry, ...] = (
    NativeFunction(
        "What the library was compiled from.", "const char *", "elementwise_sources", ()
    ),
    NativeFunction(
        "What the kernels in use are called; empty where the processor can run none.",
        "const char *",
        "elementwise_processor",
        (),
    ),
    NativeFunction(
        "Takes the kernels called `name`, or with an empty name the widest. Returns whether there are any; "
        "nothing may run.",
        "int",
        "elementwise_choose",
        (("const char *", "name"),),
    ),
    NativeFunction(
        "Runs a chain on the thread that calls.",
        "void",
        "elementwise_run",
        (("const struct chain *", "chain"),),
    ),
    NativeFunction(
        "Has the next operator `Job` that this thread runs do a chain; NULL: nothing.",
        "void",
        "elementwise_hand_over",
        (("struct chain *", "chain"),),
    ),
    NativeFunction(
        "Writes to `target` what `source` stands for. All places are multiples of four bytes, and checked "
        "before.",
        "void",
        "elementwise_expand",
        (
            ("const struct stretch *", "stretches"),
            ("size_t", "count"),
            ("const uint8_t *", "source"),
            ("uint8_t *", "target"),
        ),
    ),
    NativeFunction(
        "Chooses groups and rows of a task for memory of about `most` bytes, and returns what it takes.",
        "size_t",
        "integers_fit",
        (("struct task *", "task"), ("size_t", "most")),
    ),
    NativeFunction(
        "Runs a task, one part after the other; returns whether memory was short.",
        "int",
        "integers_run",
        (("struct task *", "task"),),
    ),
    NativeFunction(
        "As elementwise_hand_over, a task.",
        "void",
        "integers_hand_over",
        (("struct task *", "task"),),
    ),
    NativeFunction(
        "Computes an average.", "void", "integers_average", (("const struct average *", "average"),)
    ),
    NativeFunction(
        "Lets quantised layers use the processor's products of four bytes, or not. No task may run.",
        "void",
        "integers_use_dot_products",
        (("int", "wanted"),),
    ),
)

#: Chains, stored weights, quantised layers, then what the library exports.
NATIVE: tuple[Entry, ...] = (*_CHAINS, *_EXPANSION, *_LAYERS, *_FUNCTIONS)
CTYPES = CTypes(NATIVE)
