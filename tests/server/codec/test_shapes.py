"""Bodies for a model in several shapes: JSON says which, or their length does."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from models.packs.manifest import Manifest
from models.packs.shapes import PackShapes
from server.codec.framing import Framing
from server.codec.infer_bodies import BodyDecoder, decode_at_once
from server.codec.messages import Signature
from server.errors import InvalidRequestError
from tests.examples import over
from tests.server.codec.infer_cases import OUTPUTS
from tests.server.codec.test_infer_bodies import X

SHAPES = ((2, 8), (2, 4), (4, 2), (1, 3))


class _Shape:
    """As much of a manifest as shapes need."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.inputs = self.required_inputs = (replace(X, shape=shape),)
        self.outputs = OUTPUTS
        self.text = None
        self.shape_text = str(list(shape))


def model() -> Signature:
    manifests: Any = tuple(map(_Shape, SHAPES))
    shapes: tuple[Manifest, ...] = manifests
    return Signature([replace(X, shape=SHAPES[0])], OUTPUTS, shapes=PackShapes(shapes))


@over("shape", SHAPES)
def test_json_says_the_shape_before_its_data_or_after(shape: tuple[int, ...]) -> None:
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    fields = {"name": "x", "shape": list(shape), "datatype": "FP32", "data": values.tolist()}
    for data in (values.tolist(), values.ravel().tolist()):
        fields["data"] = data
        for order in (fields, dict(reversed(fields.items()))):
            body = json.dumps({"inputs": [order]}).encode()
            decoder = BodyDecoder(Framing(), model())
            for byte in body:
                decoder.feed(bytes([byte]))
            np.testing.assert_array_equal(decoder.finish().inputs["x"], values)
            request = decode_at_once(body, Framing(), model())  # of flat data alone
            assert (request is None) == isinstance(data[0], list)
            if request is not None:
                np.testing.assert_array_equal(request.inputs["x"], values)


def bare(data: bytes, step: int = 5) -> Any:
    decoder = BodyDecoder(Framing(0), model())
    for start in range(0, len(data), step):
        decoder.feed(data[start : start + step])
    return decoder.finish().inputs["x"]


def test_a_body_without_json_has_the_shape_of_its_length() -> None:
    for shape in ((2, 8), (1, 3)):
        values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        np.testing.assert_array_equal(bare(values.tobytes()), values)


@pytest.mark.parametrize(
    ("n_bytes", "message"),
    [(32, "of 2 shapes"), (0, "of 0 shapes"), (31, "of 0 shapes"), (65, "goes on behind")],
)
def test_a_length_of_no_shape_or_of_two_is_refused(n_bytes: int, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        bare(bytes(n_bytes))
