"""The table of what exported C is made of: functions and structures by name, and functions by kind.

kernels/*.c have them in the order of the table, an empty line between two.
"""

from collections.abc import Mapping
from typing import get_args

from models.network.activations import Arithmetic, Kind

#: The names in each file, the files in an order in which C takes them.
BLOCKS: Mapping[str, tuple[str, ...]] = {
    file: tuple(names.split())
    for file, names in {
        "shared": """
            each window averaging matrix planes pairs copying resizing view pixels_of bytes_of first_row
            last_row
        """,
        "crc": "crc32_of",
        "functions": """
            relu leaky_relu clip logistic sigmoid quick_gelu tangent hyperbolic_tangent hard_sigmoid
            hard_swish elu celu exponential negative absolute reciprocal softsign error_of error_function
            gelu gelu_by_tangent
        """,
        "convolution": """
            add_scaled first_inside last_inside add_line add_window is_flat make_rows convolve add_spread
            convolve_transposed copy_pixels
        """,
        "bottleneck": "bottleneck",
        "matrix": "product multiply matrices multiply_tensors",
        "pooling": "largest_of_windows average_of_windows average_of_planes largest_of_planes",
        "elements": """
            apply pairwise combine add subtract multiply_each divide modulo scale_negative larger smaller
            scale_channels square_root normalise_rows softmax
        """,
        "movement": "copy fill resize",
        "bytes": """
            byte_pairs window_averages averages nearest byte_of quantize dequantize pairwise_bytes
            combine_bytes add_bytes multiply_bytes largest_bytes average_bytes look_up average_of_bytes
            average_windows_of_bytes softmax_of_bytes
        """,
        "convolution_of_bytes": """
            bytes product_of_bytes line_of_bytes rows_of_bytes convolve_bytes quantize_line quantize_rows
            quantize_pixels place_line place_rows place_pixels
        """,
        "bottleneck_of_bytes": "word_of channel_of_bytes add_products bottleneck_of_bytes",
    }.items()
}
#: What functions are called where the name of the kind is another's in C's library, in C++ or here.
_CALLED: Mapping[Kind | Arithmetic, str] = {
    "erf": "error_function",
    "exp": "exponential",
    "gelu_tanh": "gelu_by_tangent",
    "multiply": "multiply_each",
    "silu": "quick_gelu",
    "tanh": "hyperbolic_tangent",
}


def _by_kind(file: str, kinds: tuple[Kind | Arithmetic, ...]) -> Mapping[str, str]:
    names = {kind: _CALLED.get(kind, kind) for kind in kinds}
    return {kind: name for kind, name in names.items() if name in BLOCKS[file]}


#: Functions of one number and of two, by kind.
FUNCTIONS = _by_kind("functions", get_args(Kind))
PAIRS = _by_kind("elements", get_args(Arithmetic))
