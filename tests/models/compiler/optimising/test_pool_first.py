"""Maxima of bytes come before what keeps their order, right behind what they read; bits stay the same."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from models.compiler.optimising.normalise import PoolFirst
from models.runtime.sessions import open_piece, run_session
from tests.examples import over
from tests.models.nets import parsed

POOL = "com.microsoft.NhwcMaxPool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>"
LEAKY = "com.microsoft.QLinearLeakyRelu<alpha=0.1>"


def net(body: str) -> onnx.ModelProto:
    model = parsed(f"p (uint8[1,9,8,5] x) => (uint8[1,5,4,n] y) {{ {body} }}")
    model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    for name, array in {
        **{f"s{n}": np.float32(0.02 + 0.013 * n) for n in range(4)},
        **{f"z{n}": np.uint8(100 + 17 * n) for n in range(4)},
    }.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return model


BRANCHES = f"""
    a = {LEAKY}(x, s0, z0, s1, z1)
    b = com.microsoft.QLinearAdd(x, s0, z0, x, s0, z0, s2, z2)
    c = com.microsoft.QLinearConcat<axis=3>(s3, z3, a, s1, z1, b, s2, z2)
"""


@pytest.mark.parametrize(
    ("body", "kinds"),
    [
        (f"a = {LEAKY}(x, s0, z0, s1, z1) y = {POOL}(a)", "NhwcMaxPool QLinearLeakyRelu"),
        (
            f"{BRANCHES} y = {POOL}(c)",
            "QLinearAdd NhwcMaxPool NhwcMaxPool QLinearLeakyRelu QLinearConcat",
        ),
        (
            f"a = com.microsoft.QLinearSigmoid(x, s0, z0, s1, z1) y = {POOL}(a)",
            "NhwcMaxPool QLinearSigmoid",
        ),
    ],
)
def test_bits_stay(body: str, kinds: str) -> None:
    model = net(body)
    x = np.random.default_rng(0).integers(0, 256, (1, 9, 8, 5)).astype(np.uint8)
    before = run_session(open_piece(model.SerializeToString()), {"x": x})["y"]
    PoolFirst(model).run()
    assert " ".join(node.op_type for node in model.graph.node) == kinds
    after = run_session(open_piece(model.SerializeToString()), {"x": x})["y"]
    np.testing.assert_array_equal(after, before)


@over(
    "body",
    [
        # Another reads it, too.
        f"a = {LEAKY}(x, s0, z0, s1, z1) b = {POOL}(a) "
        f"c = {POOL}(a) y = com.microsoft.QLinearAdd(b, s1, z1, c, s1, z1, s2, z2)",
        # It turns the order round.
        f"a = com.microsoft.QLinearLeakyRelu<alpha=-0.5>(x, s0, z0, s1, z1) y = {POOL}(a)",
        # Windows of it lie in several parts.
        f"c = com.microsoft.QLinearConcat<axis=1>(s3, z3, x, s0, z0, x, s0, z0) y = {POOL}(c)",
    ],
)
def test_others_stay(body: str) -> None:
    model = net(body)
    before = [node.SerializeToString() for node in model.graph.node]
    PoolFirst(model).run()
    assert [node.SerializeToString() for node in model.graph.node] == before
