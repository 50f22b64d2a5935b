"""Texts of cfg files: what is a section, an option, a comment, and what is none of them."""

import contextlib
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from models.darknet.cfg import MAX_BYTES, DarknetError, Section, format_cfg, parse_cfg, read_cfg
from models.darknet.network import build_network
from tests.examples import over
from tests.models.darknet.cfgs import SMALL
from tests.models.refusal import refuses

WORDS = st.text("abcdefghijklmnopqrstuvwxyz_0123456789,.-", min_size=1, max_size=12)
OPTIONS = st.dictionaries(WORDS, WORDS, max_size=5)


def test_sections_options_and_lines() -> None:
    net, conv = parse_cfg("[net]\nwidth=8\n\n[convolutional]\n# three\nfilters=3\nsize=1\n", "x")
    assert net == Section("net", {"width": "8"}, 1, {"width": 2})
    assert conv == Section(
        "convolutional", {"filters": "3", "size": "1"}, 4, {"filters": 6, "size": 7}
    )


@over(
    "text",
    [
        "[net]\r\nwidth=8\r\nlayers=-1,-4\r\n",
        "  [ net ]\n\twidth\t=\t8 \n layers = -1, -4 ",
        "\n\n# hello\n;[conv]\n[net]\n#width=9\nwidth=8#pixels\nlayers=-1,-4 ; both\n",
        "[net] # first\nwidth=8\nlayers=-1,-4",
    ],
)
def test_blanks_comments_and_line_ends_mean_nothing(text: str) -> None:
    (net,) = parse_cfg(text, "x")
    assert (net.kind, net.options) == ("net", {"width": "8", "layers": "-1,-4"})


def test_a_byte_order_mark_and_foreign_comments_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "x.cfg"
    path.write_bytes(b"\xef\xbb\xbf[net]\n# \xb3\xb5\xff\nwidth=8\n")
    assert read_cfg(path)[0].options == {"width": "8"}


def test_the_first_of_equal_options_counts() -> None:
    (net,) = parse_cfg("[net]\nwidth=8\nwidth=8\nbatch=1\nbatch=64\n", "x")
    assert net.options == {"width": "8", "batch": "1"}
    assert net.option_lines == {"width": 2, "batch": 4}


def test_different_values_of_one_option_are_refused() -> None:
    with refuses(DarknetError, "x: line 5", "[conv]", "filters=4", "filters=3", "line 4"):
        parse_cfg("[net]\nwidth=8\n[conv]\nfilters=3\nfilters=4\n", "x")


@over(
    "text, words",
    [
        ("", ["x: no sections"]),
        ("# nothing\n\n", ["x: no sections"]),
        ("width=8\n[net]\n", ["line 1", "width", "before the first section"]),
        ("[convolutional]\nfilters=3\n", ["line 1", "[convolutional]", "[net]"]),
        ("[net]\nwidth\n", ["line 2", "'width'"]),
        ("[net]\n=8\n", ["line 2", "'=8'"]),
        ("[net\n", ["line 1", "'[net'"]),
        ("[]\n", ["line 1", "'[]'"]),
        ("[net]width=8\n", ["line 1", "'[net]width=8'"]),
        ("[net]\n\x1b[31m\n", ["line 2"]),
    ],
)
def test_what_is_not_a_cfg_is_refused_with_its_line(text: str, words: list[str]) -> None:
    with refuses(DarknetError, *words):
        parse_cfg(text, "x")


def test_files_that_are_no_texts_are_refused(tmp_path: Path) -> None:
    binary, long = tmp_path / "binary.cfg", tmp_path / "long.cfg"
    binary.write_bytes(b"[net]\n\0\0\0")
    long.write_bytes(b"#" * (MAX_BYTES + 1))
    for path, words in [
        (binary, "not a text"),
        (long, "longer than"),
        (tmp_path / "none.cfg", "No such file"),
        (tmp_path, "directory"),
    ]:
        with refuses(DarknetError, path, words):
            read_cfg(path)


@given(OPTIONS, st.lists(st.tuples(WORDS, OPTIONS), max_size=5))
def test_formatting_is_the_reverse_of_parsing(
    net: dict[str, str], sections: list[tuple[str, dict[str, str]]]
) -> None:
    made = [Section("net", net), *(Section(kind, options) for kind, options in sections)]
    parsed = parse_cfg(format_cfg(made), "x")
    assert [(s.kind, s.options) for s in parsed] == [(s.kind, s.options) for s in made]


@given(st.text(max_size=200) | st.lists(st.sampled_from("[]#;=\n\t net"), max_size=60).map("".join))
def test_any_text_parses_or_is_refused(text: str) -> None:
    with contextlib.suppress(DarknetError):
        assert parse_cfg(text, "x")[0].kind in ("net", "network")


@over("name", SMALL)
def test_whole_files(name: str) -> None:
    sections = read_cfg(SMALL[name])
    assert sections[0].kind == "net"
    assert all(section.kind != "net" for section in sections[1:])
    again = parse_cfg(format_cfg(sections), name)
    assert [(s.kind, s.options) for s in again] == [(s.kind, s.options) for s in sections]


# Cfgs that cannot work: each is refused in one line that names the file, the line and the section.

NET = "[net]\nwidth=16\nheight=8\nchannels=4\n"  # lines 1 to 4
CONV = "[convolutional]\nfilters=4\n"
YOLO = "[yolo]\nclasses=1\nnum=2\nanchors=1,2,3,4\n"
LONG = "9" * 5000


@over(
    "text, words",
    [
        ("[lstm]\noutput=3", ["line 5", "layer 0", "[lstm]", "not supported"]),
        ("[Convolutional]", ["line 5", "[Convolutional]", "not supported"]),
        ("[local_avgpool]", ["line 5", "[local_avgpool]"]),
        (f"{CONV}[net]", ["line 7", "[net] already"]),
        ("[conv]\nfilter=3", ["line 6", "[conv]", "unknown option filter"]),
        (f"[conv]\n{'x' * 300}=3", ["line 6", "xxx..."]),
        ("[cost]\nactivation=relu", ["line 6", "[cost]", "activation"]),
        ("[conv]\nxnor=1", ["line 6", "xnor=1", "not supported"]),
        ("[conv]\nantialiasing=1", ["line 6", "antialiasing=1"]),
        ("[maxpool]\nantialiasing=2", ["line 6", "antialiasing=2"]),
        ("[conv]\nshare_index=-1", ["line 6", "share_index: -1 is no layer before"]),
        ("[reorg]\nstride=2\nreverse=1", ["line 7", "reverse=1"]),
        ("[softmax]\ntree=9k.tree", ["line 6", "tree"]),
        ("[conv]\nactivation=gauss", ["line 6", "activation=gauss", "leaky"]),
        ("", ["no layers"]),
        ("[cost]\n[dropout]", ["no layers"]),
    ],
)
def test_unknown_and_unsupported(text: str, words: list[str]) -> None:
    refused(text, *words)


@over(
    "text, words",
    [
        ("[conv]\nfilters=0", ["line 6", "filters=0", "from 1"]),
        ("[conv]\nfilters=-8", ["line 6", "filters=-8"]),
        ("[conv]\nfilters=3.5", ["line 6", "filters", "'3.5'", "not an integer"]),
        ("[conv]\nfilters=many", ["line 6", "'many'"]),
        ("[conv]\nfilters=", ["line 6", "''"]),
        ("[conv]\nfilters=1_0", ["line 6", "'1_0'"]),
        ("[conv]\nfilters=\u0663", ["line 6", "not an integer"]),
        (f"[conv]\nfilters={LONG}", ["line 6", "999...", "not an integer"]),
        ("[conv]\nfilters=2147483648", ["line 6", "not an integer"]),
        ("[conv]\nfilters=1000000000", ["line 5", "16x8", "1000000000", "larger"]),
        ("[conv]\nfilters=3\nsize=60000\npad=1", ["line 5", "layer0.weights", "larger"]),
        ("[conv]\nsize=0", ["line 6", "size=0"]),
        ("[conv]\nstride=0", ["line 6", "stride=0"]),
        ("[conv]\npadding=-1", ["line 6", "padding=-1"]),
        ("[conv]\ngroups=3\nfilters=3", ["line 6", "groups=3", "4 channels"]),
        ("[conv]\ngroups=2\nfilters=3", ["line 6", "groups=2", "3 filters"]),
        ("[conv]\nsize=9", ["line 5", "16x8x4", "too small", "9"]),
        ("[conv]\nsize=3\ndilation=2", ["line 7", "dilation=2"]),
        ("[maxpool]\nsize=10\npadding=0", ["line 5", "16x8x4", "too small"]),
        ("[maxpool]\nsize=2\npadding=4", ["line 7", "padding=4"]),
        ("[maxpool]\nmaxpool_depth=1\nout_channels=3", ["line 7", "out_channels=3", "4 channels"]),
        ("[upsample]\nstride=-2", ["line 6", "stride=-2"]),
        ("[upsample]\nscale=0", ["line 6", "scale=0"]),
        ("[upsample]\nscale=nan", ["line 6", "'nan'"]),
        ("[upsample]\nscale=1e999", ["line 6", "'1e999'"]),
        ("[upsample]\nstride=60000", ["line 5", "larger"]),
        ("[reorg]\nstride=3", ["line 6", "stride=3", "16x8x4"]),
        ("[crop]\ncrop_width=17\ncrop_height=4", ["line 5", "17x4", "16x8x4"]),
        ("[connected]\noutput=0", ["line 6", "output=0"]),
        ("[connected]\noutput=100000000", ["line 5", "layer0.weights", "larger"]),
        ("[softmax]\ngroups=3", ["line 5", "groups=3", "512"]),
        ("[softmax]\ntemperature=-1", ["line 6", "temperature=-1"]),
    ],
)
def test_impossible_numbers(text: str, words: list[str]) -> None:
    refused(text, *words)


@over(
    "text, words",
    [
        ("[route]\nlayers=-1", ["line 6", "-1", "no layer before"]),
        (f"{CONV}[route]", ["line 7", "layers is missing"]),
        (f"{CONV}[route]\nlayers=1", ["line 8", "layer 1 [route]", "1 is no layer"]),
        (f"{CONV}[route]\nlayers=7", ["line 8", "7 is no layer"]),
        (f"{CONV}[route]\nlayers=-2", ["line 8", "-2 is no layer"]),
        (f"{CONV}[route]\nlayers=0,", ["line 8", "''"]),
        (f"{CONV}[shortcut]", ["line 7", "from is missing"]),
        (f"{CONV}[shortcut]\nfrom=1", ["line 8", "1 is no layer"]),
        (f"{CONV}[shortcut]\nfrom=-9", ["line 8", "-9 is no layer"]),
        (f"{CONV}[sam]", ["line 7", "from is missing"]),
        (f"{CONV}[sam]\nfrom=3", ["line 8", "3 is no layer", "from"]),
        (f"{CONV}[scale_channels]\nfrom=-2", ["line 8", "-2 is no layer"]),
        (f"{CONV}{CONV}stride=2\n[route]\nlayers=-1,-2", ["line 11", "8x4x4", "16x8x4"]),
        (f"{CONV}[route]\nlayers=-1\ngroups=3", ["line 9", "groups=3", "4 channels"]),
        (f"{CONV}[route]\nlayers=-1\ngroups=2\ngroup_id=2", ["line 10", "group_id=2"]),
        ("[conv]\nfilters=3\n[route_lhalf]\nlayers=-1", ["line 8", "3 channels"]),
        (f"{CONV}[avgpool]\n{CONV}share_index=-1", ["line 10", "layer 1 is no convolution"]),
        (f"{CONV}{CONV}size=3\nshare_index=0", ["line 10", "layer 0 has other", "sizes"]),
        (f"{CONV}{CONV}batch_normalize=1\nshare_index=0", ["line 10", "batch_normalize"]),
        (f"{CONV}[upsample]\n[shortcut]\nfrom=0", ["line 9", "16x8x4", "32x16x4"]),
        (f"{CONV}size=2\n[maxpool]\nstride=2\n[shortcut]\nfrom=0", ["line 11", "15x7x4", "8x4x4"]),
        (f"{CONV}[conv]\nfilters=3\n{CONV}[shortcut]\nfrom=-2,-3", ["line 12", "16x8x3", "16x8x4"]),
        (f"{CONV}{CONV}[shortcut]\nfrom=0\nweights_type=all", ["line 11", "all", "per_channel"]),
        (f"{CONV}[scale_channels]\nfrom=0", ["line 8", "16x8x4", "cannot scale"]),
        (f"{CONV}[avgpool]\n[sam]\nfrom=0", ["line 9", "16x8x4", "1x1x4"]),
    ],
)
def test_layers_that_do_not_fit_together(text: str, words: list[str]) -> None:
    refused(text, *words)


@over(
    "text, words",
    [
        (f"{CONV}{YOLO}", ["line 7", "[yolo]", "2 anchors", "12 channels", "has 4"]),
        (f"{CONV}{YOLO}mask=0,2", ["line 11", "no anchor 2"]),
        (f"{CONV}{YOLO}mask=-1", ["line 11", "no anchor -1"]),
        (f"{CONV}[yolo]\nclasses=1", ["line 7", "anchors is missing"]),
        (f"{CONV}[yolo]\nnum=3\nanchors=1,2,3,4", ["line 9", "num=3", "6 numbers, not 4"]),
        (f"{CONV}[yolo]\nnum=1\nanchors=1,2,3", ["line 9", "2 numbers, not 3"]),
        (f"{CONV}[yolo]\nnum=1\nmask=2\nanchors=1,2,3,4", ["no anchor 2 among 2"]),
        (f"{CONV}[yolo]\nnum=1\nanchors=1,0", ["line 9", "above 0"]),
        (f"{CONV}[yolo]\nnum=1\nanchors=1,x", ["line 9", "'x'"]),
        (f"{CONV}[region]\nnum=1\nanchors=1,2\nclasses=2", ["line 7", "7 channels", "has 4"]),
        (f"{CONV}[region]\nnum=1\nanchors=1,2\ncoords=5", ["line 10", "coords=5"]),
        (f"[conv]\nfilters=12\n{YOLO}nms_kind=soft", ["line 11", "nms_kind=soft"]),
        (f"[conv]\nfilters=12\n{YOLO}beta_nms=0", ["line 11", "beta_nms=0"]),
        (
            f"[conv]\nfilters=12\n{YOLO}[conv]\nfilters=7\n[yolo]\nclasses=2\nnum=1\nanchors=1,2",
            ["classes=2", "layer 1 has 1"],
        ),
    ],
)
def test_detection_layers(text: str, words: list[str]) -> None:
    refused(text, *words)


def refused(text: str, *words: str) -> None:
    with refuses(DarknetError, "x.cfg: ", *words):
        build_network(parse_cfg(NET + text, "x.cfg"), "x.cfg")


@over(
    "net, words",
    [
        ("[net]\nheight=8\nchannels=3\n[conv]", ["line 1", "width is missing"]),
        ("[net]\nwidth=8\nheight=8\nchannels=0\n[conv]", ["line 4", "channels=0"]),
        ("[net]\nwidth=1000000000\nheight=8\nchannels=3\n[conv]", ["line 1", "1000000000x8x3"]),
        ("[net]\nwidth=8\nheight=8\nchannels=3\ninputs=192\n[conv]", ["line 5", "inputs"]),
        ("[net]\nwidth=8\nheight=8\nchannels=3", ["no layers"]),
    ],
)
def test_bad_net(net: str, words: list[str]) -> None:
    with refuses(DarknetError, "x.cfg: ", *words):
        build_network(parse_cfg(net, "x.cfg"), "x.cfg")


def test_a_resolution_can_be_too_small_or_too_large() -> None:
    sections = parse_cfg(NET + CONV + "size=5", "x.cfg")
    for resolution, word in [(4, "too small"), (1 << 30, "larger"), (0, "width=0")]:
        with refuses(DarknetError, word):
            build_network(sections, "x.cfg", resolution)


def test_all_weights_together_have_a_limit() -> None:
    wide = "[avgpool]\n" + "[connected]\noutput=16000\n" * 6
    refused(wide, "weights are more than any network has")


def test_sections_without_a_file_are_named_by_their_number() -> None:
    net = Section("net", {"width": "8", "height": "8", "channels": "3"})
    with refuses(DarknetError, "network: layer 1 [conv]: filters=0"):
        build_network([net, Section("conv", {}), Section("conv", {"filters": "0"})])
    for sections in ([], [Section("conv", {})]):
        with refuses(DarknetError, "zoo: does not start with a section [net]"):
            build_network(sections, "zoo")
