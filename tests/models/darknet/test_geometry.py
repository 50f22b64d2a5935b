"""Shapes, arrays and counts of networks: from small cfgs by hand, and of real ones from the papers."""

import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from models.darknet.cfg import format_cfg, parse_cfg
from models.darknet.image_layers import CropOperation, MaxPoolOperation
from models.darknet.joining_layers import ShortcutOperation
from models.darknet.layers import DarknetNetwork
from models.darknet.network import build_network, layer_sizes
from models.darknet.vector_layers import RegionOperation, YoloOperation
from models.zoo.darknet import SECTIONS
from tests.examples import over
from tests.models.darknet.cfgs import ZOO

MIB = 1 << 20

# Table 2.1 of "Memory-Aware Fusing and Tiling of Neural Networks for Accelerated Edge Inference": YOLOv2's
# first layers at 608, their input, and MiB of input, output, scratch and all.
TABLE_2_1 = [
    ("conv", "608x608x3", 4.23, 45.13, 38.07, 87.43),
    ("max", "608x608x32", 45.13, 11.28, 0, 56.41),
    ("conv", "304x304x32", 11.28, 22.56, 101.53, 135.45),
    ("max", "304x304x64", 22.56, 5.64, 0, 28.2),
    ("conv", "152x152x64", 5.64, 11.28, 50.77, 67.97),
    ("conv", "152x152x128", 11.28, 5.64, 11.28, 28.23),
    ("conv", "152x152x64", 5.64, 11.28, 50.77, 67.97),
    ("max", "152x152x128", 11.28, 2.82, 0, 14.1),
    ("conv", "76x76x128", 2.82, 5.64, 25.38, 34.97),
    ("conv", "76x76x256", 5.64, 2.82, 5.64, 14.23),
    ("conv", "76x76x128", 2.82, 5.64, 25.38, 34.97),
    ("max", "76x76x256", 5.64, 1.41, 0, 7.05),
    ("conv", "38x38x256", 1.41, 2.82, 12.69, 21.42),
    ("conv", "38x38x512", 2.82, 1.41, 2.82, 7.55),
    ("conv", "38x38x256", 1.41, 2.82, 12.69, 21.42),
    ("conv", "38x38x512", 2.82, 1.41, 2.82, 7.55),
]


def network(
    text: str, net: str = "width=16\nheight=8\nchannels=4", **options: Any
) -> DarknetNetwork:
    """The layers of ``text`` on an image of 16x8x4."""
    return build_network(parse_cfg(f"[net]\n{net}\n{text}", "x"), "x", **options)


def real(name: str, resolution: int | None = None) -> DarknetNetwork:
    return build_network(SECTIONS[name](), name, resolution)


def last(text: str) -> tuple[int, int, int]:
    return network(text).layers[-1].shape


@over(
    "options, shape",
    [
        ("filters=5\nsize=3\nstride=1\npad=1", (5, 8, 16)),
        ("filters=5\nsize=3\nstride=2\npad=1", (5, 4, 8)),
        ("filters=5\nsize=3", (5, 6, 14)),
        ("filters=5\nsize=3\npadding=2", (5, 10, 18)),
        ("filters=5\nsize=3\npadding=2\npad=1", (5, 8, 16)),
        ("filters=5\nsize=3\ndilation=2\npadding=1", (5, 8, 16)),
        ("filters=5\nsize=5\ndilation=3\npad=1\nstride=2", (5, 4, 8)),
        ("filters=5\nstride_x=4\nstride_y=2", (5, 4, 4)),
        ("filters=5\nsize=1\npad=1\ndilation=9", (5, 8, 16)),
        ("", (1, 8, 16)),
    ],
)
def test_convolutions(options: str, shape: tuple[int, int, int]) -> None:
    assert last(f"[convolutional]\n{options}") == shape


@over(
    "options, shape, pads",
    [
        ("size=2\nstride=2", (4, 4, 8), (0, 0, 0, 0)),
        ("size=2\nstride=1", (4, 8, 16), (0, 0, 1, 1)),
        ("size=3\nstride=2", (4, 4, 8), (1, 1, 0, 0)),
        ("size=5\nstride=1", (4, 8, 16), (2, 2, 2, 2)),
        ("size=2\nstride=2\npadding=0", (4, 4, 8), (0, 0, 0, 0)),
        ("size=3\nstride=2\npadding=0", (4, 3, 7), (0, 0, 0, 0)),
        ("stride=2", (4, 4, 8), (0, 0, 0, 0)),
        ("size=2\nstride_x=2\nstride_y=1", (4, 8, 8), (0, 0, 0, 1)),
    ],
)
def test_pools(options: str, shape: tuple[int, int, int], pads: tuple[int, ...]) -> None:
    (layer,) = network(f"[max]\n{options}").layers
    assert layer.shape == shape
    assert isinstance(layer.operation, MaxPoolOperation)
    assert layer.operation.pads == pads


@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 9))
def test_windows_of_a_pool_cover_what_darknet_says(length: int, size: int, stride: int) -> None:
    net = f"width={length}\nheight={length}\nchannels=1"
    (layer,) = network(f"[maxpool]\nsize={size}\nstride={stride}", net).layers
    assert isinstance(layer.operation, MaxPoolOperation)
    left, _, right, _ = layer.operation.pads
    out = layer.shape[2]
    assert out == (length - 1) // stride + 1
    # ONNX computes the same length from the pads, and every window sees the input.
    assert (length + left + right - size) // stride + 1 == out
    assert (out - 1) * stride - left < length
    assert max(left, right) < size


@over(
    "text, shape",
    [
        ("[avgpool]", (4, 1, 1)),
        ("[upsample]", (4, 16, 32)),
        ("[upsample]\nstride=3", (4, 24, 48)),
        ("[reorg]\nstride=2", (16, 4, 8)),
        ("[maxpool]\nmaxpool_depth=1\nout_channels=2", (2, 8, 16)),
        ("[crop]\ncrop_width=6\ncrop_height=4", (4, 4, 6)),
        ("[connected]\noutput=7", (7, 1, 1)),
        ("[softmax]\ngroups=4", (512, 1, 1)),
        ("[conv]\nfilters=6\n[route]\nlayers=-1\ngroups=3\ngroup_id=1", (2, 8, 16)),
        ("[conv]\nfilters=6\n[conv]\nfilters=3\n[route]\nlayers=0, -1", (9, 8, 16)),
        ("[conv]\nfilters=6\n[avgpool]\n[scale_channels]\nfrom=-2", (6, 8, 16)),
        ("[conv]\nfilters=6\n[conv]\n[scale_channels]\nfrom=0\nscale_wh=1", (6, 8, 16)),
        ("[conv]\nfilters=6\n[conv]\nfilters=6\n[sam]\nfrom=0", (6, 8, 16)),
        ("[conv]\nfilters=6\n[conv]\nfilters=2\n[shortcut]\nfrom=-2", (2, 8, 16)),
        ("[conv]\nfilters=2\n[conv]\nfilters=6\n[shortcut]\nfrom=-2", (6, 8, 16)),
        ("[conv]\n[dropout]\nprobability=.5\n[cost]\ntype=sse", (1, 8, 16)),
    ],
)
def test_shapes(text: str, shape: tuple[int, int, int]) -> None:
    assert last(text) == shape


def test_a_crop_is_the_centre_and_scales_with_the_image() -> None:
    sections = parse_cfg(
        "[net]\nwidth=256\nheight=256\nchannels=3\n[crop]\ncrop_width=224\ncrop_height=200", "x"
    )
    for resolution, sides, corner in [(None, (224, 200), (16, 28)), (100, (87, 78), (6, 11))]:
        made = build_network(sections, "x", resolution)
        (layer,) = made.layers
        assert layer.shape == (3, sides[1], sides[0])
        assert layer.operation == CropOperation(*corner, adjust=True)
        # What the metadata keep builds the same network.
        assert (
            build_network(parse_cfg(format_cfg(made.sections), "x")).layers[0].shape == layer.shape
        )


def test_a_larger_source_of_a_shortcut_is_sampled() -> None:
    text = "[conv]\nfilters=3\n[conv]\nfilters=3\nstride=2\n[shortcut]\nfrom=0"
    operation = network(text).layers[-1].operation
    assert isinstance(operation, ShortcutOperation)
    assert operation.strides == (2,)


def test_arrays_are_in_the_order_of_a_weights_file() -> None:
    made = network(
        """[conv]
        filters=6
        size=3
        groups=2
        batch_normalize=1
        [conv]
        filters=6
        size=5
        [maxpool]
        [connected]
        output=7
        batch_normalize=1
        [connected]
        output=7
        [shortcut]
        from=-2
        weights_type=per_channel
        [shortcut]
        from=-2,-3
        weights_type=per_layer
        """
    )
    assert [(a.name, a.shape) for layer in made.layers for a in layer.arrays] == [
        ("layer0.biases", (6,)),
        ("layer0.scales", (6,)),
        ("layer0.mean", (6,)),
        ("layer0.variance", (6,)),
        ("layer0.weights", (6, 2, 3, 3)),
        ("layer1.biases", (6,)),
        ("layer1.weights", (6, 6, 5, 5)),
        ("layer3.biases", (7,)),
        ("layer3.weights", (7, 6 * 2 * 10)),
        ("layer3.scales", (7,)),
        ("layer3.mean", (7,)),
        ("layer3.variance", (7,)),
        ("layer4.biases", (7,)),
        ("layer4.weights", (7, 7)),
        ("layer5.weights", (2, 7)),
        ("layer6.weights", (3,)),
    ]


def test_inputs_and_outputs() -> None:
    yolo = "[yolo]\nclasses=1\nnum=2\nmask=1\nanchors=1,2,3,4\n"
    conv = "[conv]\nfilters=6\n"
    made = network(f"{conv}{yolo}[route]\nlayers=0\n{conv}{yolo}")
    assert [layer.inputs for layer in made.layers] == [(-1,), (0,), (0,), (2,), (3,)]
    assert made.outputs == (1, 4)
    assert isinstance(made.layers[1].operation, YoloOperation)
    assert made.layers[1].operation.anchors == ((3.0, 4.0),)
    assert network("[conv]\n[dropout]\n[cost]").outputs == (1,)


def test_masks_name_anchors_beyond_their_number() -> None:
    """cspx-p7-mish.cfg lists 20, says num=16, and has a mask of 16 to 19."""
    yolo = "[yolo]\nclasses=1\nnum=1\nmask=2,0\nanchors=1,2,3,4,5,6\n"
    operation = network(f"[conv]\nfilters=12\n{yolo}").layers[1].operation
    assert isinstance(operation, YoloOperation)
    assert operation.anchors == ((5.0, 6.0), (1.0, 2.0))


def test_region_anchors() -> None:
    text = (
        "[conv]\nfilters=14\n[region]\nclasses=2\nnum=2\ncoords=4\nanchors=.5, 1, 2.25,3\nsoftmax=1"
    )
    assert network(text).layers[-1].operation == RegionOperation(
        ((0.5, 1.0), (2.25, 3.0)), 2, softmax=True
    )


def test_sizes_of_table_2_1() -> None:
    """All 16 rows to the last digit printed; 45.125 is printed as 45.13."""
    sizes = layer_sizes(real("yolov2", 608))[: len(TABLE_2_1)]
    for (kind, shape, *printed), row in zip(TABLE_2_1, sizes, strict=True):
        channels, height, width = row.input
        assert row.kind.startswith(kind)
        assert shape == f"{width}x{height}x{channels}"
        computed = (row.input_bytes, row.output_bytes, row.scratch_bytes, row.total_bytes)
        assert [math.floor(size / MIB * 100 + 0.5) / 100 for size in computed] == printed


@over("name", ZOO)
def test_real_networks_at_several_resolutions(name: str) -> None:
    own = real(name)
    for resolution in (192, 256):
        other = real(name, resolution)
        assert (other.width, other.height) == (resolution, resolution)
        assert [layer.kind for layer in other.layers] == [layer.kind for layer in own.layers]
        if "connected" not in {layer.kind for layer in own.layers}:
            assert [layer.arrays for layer in other.layers] == [
                layer.arrays for layer in own.layers
            ]
