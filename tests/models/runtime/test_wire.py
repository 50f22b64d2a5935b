"""Messages as bytes: what is written is read, as the ONNX library reads and writes it."""

from enum import IntEnum

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.runtime import wire
from models.runtime.wire import WireError, contents, field, fields, packed
from tests.examples import examples, over

_NUMBERS = st.integers(-(1 << 63), (1 << 63) - 1)
_BITS = 1 << 64


@examples(12, many=500, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(1, 1 << 20),
            st.one_of(_NUMBERS, st.text(max_size=40), st.binary(max_size=200)),
        )
    )
)
def test_what_is_written_is_read(written: list[tuple[int, int | str | bytes]]) -> None:
    data = b"".join(field(*each) for each in written)
    found = list(fields(data))
    assert b"".join(each.whole for each in found) == data
    for (number, content), each in zip(written, found, strict=True):
        assert each.number == number
        if isinstance(content, int):
            assert (each.value, each.data) == (content % _BITS, b"")
        else:
            assert each.data == (content.encode() if isinstance(content, str) else content)


@examples(12, many=500, deadline=None)
@given(st.lists(_NUMBERS, min_size=1), st.text())
def test_the_onnx_library_reads_and_writes_the_same(numbers: list[int], name: str) -> None:
    attribute = wire.AttributeField
    data = field(attribute.NAME, name) + packed(attribute.INTS, numbers)
    message = onnx.AttributeProto.FromString(data)
    assert (message.name, list(message.ints)) == (name, numbers)
    assert contents(message.SerializeToString(), attribute.NAME) == [name.encode()]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x80", id="a number that does not end"),
        pytest.param(b"\x08" + b"\xff" * 10 + b"\x01", id="a number of more than 64 bits"),
        pytest.param(b"\x0b", id="a group"),
        pytest.param(b"\x0a\x05abc", id="bytes that are not there"),
        pytest.param(b"\x0d\x00\x00", id="half of four bytes"),
    ],
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        list(fields(data))


@over(
    "numbers, message",
    [
        (wire.ModelField, onnx.ModelProto),
        (wire.OpsetField, onnx.OperatorSetIdProto),
        (wire.GraphField, onnx.GraphProto),
        (wire.NodeField, onnx.NodeProto),
        (wire.AttributeField, onnx.AttributeProto),
        (wire.TensorField, onnx.TensorProto),
        (wire.ValueField, onnx.ValueInfoProto),
        (wire.TypeField, onnx.TypeProto),
        (wire.TensorTypeField, onnx.TypeProto.Tensor),
        (wire.ShapeField, onnx.TensorShapeProto),
        (wire.DimensionField, onnx.TensorShapeProto.Dimension),
    ],
)
def test_fields_have_the_numbers_of_onnx(
    numbers: type[IntEnum], message: type[onnx.ModelProto]
) -> None:
    theirs = {each.name: each.number for each in message.DESCRIPTOR.fields}
    ours = {each.name.lower(): int(each) for each in numbers}
    assert {name: theirs.get(name) for name in ours} == ours
