"""A form read as it comes: whatever its parts, and wherever a packet ends, the same picture and fields."""

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.errors import InvalidRequestError
from server.protocol.pictures import SentPicture
from tests.examples import examples

TYPE = "multipart/form-data; boundary=edge"
WANTED = ("api_key", "min_confidence")
# What looks like the end of a part, in the middle of one.
TRAPS = (b"\r\n--edg", b"--edge", b"\r\n", b"\r\n--", b"\r", b"-")


def part(name: str, value: bytes, filename: str | None = None) -> bytes:
    named = f'; filename="{filename}"' if filename is not None else ""
    head = f'--edge\r\nContent-Disposition: form-data; name="{name}"{named}\r\n\r\n'
    return head.encode() + value + b"\r\n"


def form(*parts: bytes) -> bytes:
    return b"".join(parts) + b"--edge--\r\n"


def sent(body: bytes, cuts: list[int]) -> SentPicture:
    found = SentPicture(TYPE, WANTED)
    places = sorted({0, len(body), *(cut % (len(body) + 1) for cut in cuts)})
    for first, end in itertools.pairwise(places):
        found.add(body[first:end])
    return found


def contents() -> st.SearchStrategy[bytes]:
    """Bytes with traps among them, but for an edge."""
    pieces = st.lists(st.one_of(st.binary(max_size=20), st.sampled_from(TRAPS)), max_size=12)
    return pieces.map(b"".join).filter(lambda data: b"\r\n--edge" not in b"\r\n" + data)


@examples(25, 1000)
@given(
    image=contents().filter(bool),
    fields=st.dictionaries(
        st.sampled_from((*WANTED, "other")), contents().filter(lambda data: len(data) <= 256)
    ),
    place=st.integers(0, 3),
    cuts=st.lists(st.integers(0, 4000), max_size=30),
)
def test_any_split_gives_the_same(
    image: bytes, fields: dict[str, bytes], place: int, cuts: list[int]
) -> None:
    parts = [part(name, value) for name, value in fields.items()]
    parts.insert(place, part("image", image, "a.jpg"))
    found = sent(form(*parts), cuts)
    assert found.finish().getvalue() == image
    expected = {name: value.decode("utf-8", "replace") for name, value in fields.items()}
    assert found.fields == {name: expected[name] for name in WANTED if name in expected}


@examples(25, 1000)
@given(
    changes=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=6),
    end=st.integers(0, 400),
    cuts=st.lists(st.integers(0, 400), max_size=8),
)
def test_a_broken_form_is_refused_in_one_line(
    changes: list[tuple[int, int]], end: int, cuts: list[int]
) -> None:
    """Or is a form all the same; whichever, the same at any split."""
    body = bytearray(form(part("api_key", b"k"), part("image", b"pixels", "a.jpg")))
    for place, value in changes:
        body[place % len(body)] = value
    body = body[: max(end, 1)]

    def outcome(cuts: list[int]) -> object:
        try:
            found = sent(bytes(body), cuts)
            return found.finish().getvalue(), found.fields
        except InvalidRequestError as exc:
            # Where an error lies in it, its parser counts from where the packet began.
            return re.sub(r"\d+", "", str(exc))

    found = outcome([])
    assert outcome(cuts) == found
    assert "\n" not in str(found) or isinstance(found, tuple)


def test_fields_are_short() -> None:
    assert sent(form(part("api_key", b"k" * 256)), []).fields["api_key"] == "k" * 256
    for cuts in ([], [300], list(range(100, 320))):
        with pytest.raises(InvalidRequestError, match=r"'api_key' of the form is over 256 bytes"):
            sent(form(part("api_key", b"k" * 257)), cuts)
    assert sent(form(part("other", b"k" * 9000)), []).fields == {}
