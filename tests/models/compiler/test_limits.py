"""Values of inputs that decide how large a tensor becomes: refused, unless something limits them."""

from pathlib import Path

import onnx

from models.compiler import compile_onnx
from models.compiler.analysis.limits import check_limits
from models.errors import CompileError
from models.graphs.reader import graph_of
from models.graphs.tidy import lift_constants
from tests.examples import over
from tests.models.nets import parsed, written
from tests.models.refusal import refuses

# Each of these reads inputs n, f, x and b, and may read constants.
INPUTS = "int64[1] n, float[1] f, float[2,4] x, uint8[1] b"
CONSTANTS = """
    zero = Constant<value = int64 {0}>()
    two = Constant<value = int64 {2}>()
    step = Constant<value = int64 {1}>()
    ten = Constant<value_floats = [10.0]>()
    nothing = Constant<value_floats = [0.0]>()
    one = Constant<value_ints = [1]>()
    four = Constant<value_ints = [4]>()
    endless = Constant<value = int64 {9223372036854775807}>()
    yes = Constant<value = bool {1}>()
"""
LOOP = """y = Loop(COUNT, GOING, x) <
    body = b (int64 i, bool go, float[2,4] s) => (bool again, float t) { AGAIN BODY }
>"""
SCANNED = """s, y = Loop(COUNT, GOING, x) <
    body = b (int64 i, bool go, float[2,4] s) => (bool again, float t, float u) {
        AGAIN t = Tanh(s) u = Tanh(s)
    }
>"""


def network(body: str) -> onnx.ModelProto:
    model = parsed(f"m ({INPUTS}) => (float y) {{ {CONSTANTS} {body} }}")
    lift_constants(model)  # as it is read
    return model


def looped(
    text: str,
    count: str = "two",
    going: str = "yes",
    again: str = "again = Identity(go)",
    body: str = "t = Tanh(s)",
) -> str:
    """Return a Loop ``count`` times, while ``again`` is true; m is the number n, on whether f is not 0."""
    texts = {"COUNT": count, "GOING": going, "AGAIN": again, "BODY": body}
    for name, replacement in texts.items():
        text = text.replace(name, replacement)
    return f"m = Squeeze(n) h = Squeeze(f) on = Cast<to=9>(h) {text}"


WHILE_F = "z = ReduceMax<keepdims=0>(s) again = Cast<to=9>(z)"
LONGER = "t = Concat<axis=0>(s, s)"


@over(
    "body, node, name",
    [
        ("y = Expand(x, n)", "Expand", "n"),
        ("y = ConstantOfShape(n)", "ConstantOfShape", "n"),
        ("k = Concat<axis=0>(n, one) y = Tile(x, k)", "Tile", "n"),
        ("m = Squeeze(n) y = Range(zero, m, step)", "Range", "n"),
        ("m = Squeeze(n) y = Range(m, two, step)", "Range", "n"),
        ("h = Sigmoid(f) g = Squeeze(h) o = Squeeze(ten) y = Range(o, o, g)", "Range", "f"),
        ("k = Concat<axis=0>(f, f) y = Resize(x, , k)", "Resize", "f"),
        ("k = Concat<axis=0>(four, n) y = Resize(x, , , k)", "Resize", "n"),
        ("k = Concat<axis=0>(n, n, n, n) y = Pad(x, k)", "Pad", "n"),
        ("v = Concat<axis=0>(nothing, ten) y = OneHot(four, n, v)", "OneHot", "n"),
        # What is made of them on the way there.
        ("g = Exp(f) k = Cast<to=7>(g) y = Expand(x, k)", "Expand", "f"),
        (
            "g = ReduceSum<keepdims=0>(x) h = Add(g, f) k = Cast<to=7>(h) y = Expand(x, k)",
            "Expand",
            "f",
        ),
        ("k = Max(n, one) y = Expand(x, k)", "Expand", "n"),
        ("m = Min(n, one) k = Neg(m) y = Expand(x, k)", "Expand", "n"),
        ("m = Min(n, one) k = Sub(four, m) y = Expand(x, k)", "Expand", "n"),
        ("g = Sigmoid(f) h = Div(ten, g) k = Cast<to=7>(h) y = Expand(x, k)", "Expand", "f"),
        ("v, i = TopK(f, one) k = Cast<to=7>(v) y = Expand(x, k)", "Expand", "f"),
        ("g = Clip(f, nothing) k = Cast<to=7>(g) y = Expand(x, k)", "Expand", "f"),
        # In bodies, and by rounds of loops.
        (looped(LOOP, body="t = Expand(s, n)"), "Expand", "n"),
        (
            "c = Cast<to=9>(f) k = Squeeze(c) y = If(k) <then_branch = t () => (float p) {p = Expand(x, n)}"
            ", else_branch = e () => (float q) {q = Expand(x, four)}>",
            "Expand",
            "n",
        ),
        (looped(SCANNED, count="m"), "Loop", "n"),
        (looped(SCANNED, count="", going="on"), "Loop", "f"),
        (looped(SCANNED, count="endless", again=WHILE_F), "Loop", "x"),
        (looped(LOOP, count="m", body=LONGER), "Loop", "n"),
    ],
)
def test_values_without_a_limit_decide_no_size(body: str, node: str, name: str) -> None:
    with refuses(CompileError, "m.onnx: ", f"({node})", "values of input", f"'{name}'"):
        check_limits(graph_of(network(body)), Path("m.onnx"))


@over(
    "body",
    [
        # Lengths and places, also of what a run decides.
        "p = NonZero(x) k = Shape(p) y = Expand(x, k)",
        "p = NonZero(x) k = Size(p) y = Range(zero, k, step)",
        "a = ArgMax(x) k = Reshape(a, four) y = Expand(x, k)",
        "v, i = TopK(f, n) y = Expand(x, i)",
        # What is limited on the way.
        "g = Clip(f, nothing, ten) k = Cast<to=7>(g) y = Expand(x, k)",
        "k = Min(n, four) y = Expand(x, k)",
        "k = Min(n, four) m = Max(k, one) h = Neg(m) l = Add(h, four) y = Expand(x, l)",
        "k = Min(n, four) m = Squeeze(k) y = Range(zero, m, step)",
        "g = Sigmoid(f) h = Mul(g, ten) k = Cast<to=7>(h) y = Expand(x, k)",
        "k = Cast<to=7>(b) y = Expand(x, k)",
        "c = Greater(f, nothing) k = Where(c, one, four) y = Expand(x, k)",
        "k = Mod(n, four) y = Expand(x, k)",
        "k = Gather(four, n) y = Expand(x, k)",
        # What only takes some of what is there.
        "y = Slice(x, n, n)",
        "y = Reshape(x, n)",
        "y = Gather(x, n)",
        # Rounds that make nothing larger, and those that are counted.
        looped(LOOP, count="m"),
        looped(LOOP, count="", again=WHILE_F),
        looped(LOOP, body=LONGER),
        looped(SCANNED),
        looped(SCANNED, again=WHILE_F),
        looped(SCANNED, count="endless"),
        looped(
            LOOP,
            count="m",
            body="h = Shape(s) k = Concat<axis=0>(h, one) g = Reshape(s, k) t = Squeeze(g)",
        ),
    ],
)
def test_sizes_with_a_limit_are_accepted(body: str) -> None:
    check_limits(graph_of(network(body)), Path("m.onnx"))


def test_what_a_loop_counts_is_as_large_as_its_rounds() -> None:
    counting = """m = Squeeze(n)
        c = Loop(m, yes, zero) <body = b (int64 i, bool go, int64 s) => (bool again, int64 t) {
            again = Identity(go) t = Add(s, step)
        }>
        k = Reshape(c, one)
        y = Expand(x, k)"""
    with refuses(CompileError, "(Expand)", "'n'"):
        check_limits(graph_of(network(counting)), Path("m.onnx"))
    check_limits(graph_of(network(counting.replace("Loop(m", "Loop(two"))), Path("m.onnx"))


def test_such_a_network_is_not_compiled(tmp_path: Path) -> None:
    source = written(
        parsed("m (float[1,4] x, int64[2] n) => (float y) { y = Expand(x, n) }"),
        tmp_path / "m.onnx",
    )
    with refuses(CompileError, source, "'y' (Expand)", "make it a constant"):
        compile_onnx(source, tmp_path / "r" / "m")
    assert not (tmp_path / "r" / "m").exists()
