"""The grammar over protobuf's tokens beside protobuf's own, and what both refuse."""

from functools import cache
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from hypothesis import given
from hypothesis import strategies as st

from server.repository.text_format import Message, TextFormatError, parse
from tests.examples import over

FIELDS = descriptor_pb2.FieldDescriptorProto
KINDS = {
    "text": FIELDS.TYPE_STRING,
    "raw": FIELDS.TYPE_BYTES,
    "whole": FIELDS.TYPE_INT64,
    "real": FIELDS.TYPE_DOUBLE,
    "flag": FIELDS.TYPE_BOOL,
    "inner": FIELDS.TYPE_MESSAGE,
}


@cache
def tree() -> Any:
    """A message with repeated fields of every kind, itself among them."""
    file = descriptor_pb2.FileDescriptorProto(name="tree.proto", package="t", syntax="proto2")
    message = file.message_type.add(name="Tree")
    for number, (name, kind) in enumerate(KINDS.items(), 1):
        field = message.field.add(name=name, number=number, type=kind, label=FIELDS.LABEL_REPEATED)
        if name == "inner":
            field.type_name = ".t.Tree"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Tree"))


def trees(depth: int = 3) -> st.SearchStrategy[dict[str, list[Any]]]:
    inner = st.lists(trees(depth - 1), max_size=2) if depth else st.just([])
    return st.fixed_dictionaries(
        {
            "text": st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=2),
            "raw": st.lists(st.binary(), max_size=2),
            "whole": st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=2),
            "real": st.lists(st.floats(allow_nan=False), max_size=2),
            "flag": st.lists(st.booleans(), max_size=2),
            "inner": inner,
        }
    )


def plain(fields: Message) -> dict[str, list[Any]]:
    """What a Tree has in those fields."""
    found: dict[str, list[Any]] = {name: [] for name in KINDS}
    for field in fields:
        value: Any = field.value
        if field.name == "inner":
            value = plain(value)
        elif field.name == "text":
            value = value.decode()
        elif field.name == "real":
            value = float(value)
        elif field.name == "flag":
            value = value == "true"
        found[field.name].append(value)
    return found


@given(value=trees(), one_line=st.booleans(), angles=st.booleans(), unicode=st.booleans())
def test_reads_what_protobuf_writes(
    value: dict[str, list[Any]], one_line: bool, angles: bool, unicode: bool
) -> None:
    message = tree()(**value)
    text = text_format.MessageToString(
        message, as_one_line=one_line, pointy_brackets=angles, as_utf8=unicode
    )
    assert plain(parse(text)) == value


@over(
    "text",
    [
        "",
        " # nothing\n",
        "whole: 1 whole: 2",
        "whole: 1; whole: 2, whole: -3;",
        "whole: [1, 0x1F, -0x2, 017]",
        "whole: []",
        "inner { whole: 1 } inner: < > inner: [{}, { flag: true }]",
        "inner [ { }, < whole: 1 > ]",
        r"""text: 'it"s' "\x41\102\u00e9\U0001F600\n" 'end'""",
        r'raw: "\377\0\x7f"',
        "real: [1.5, .5, 2., 1e3, 1.5e-3f, 7f, 3, inf, -inf, -1]",
        "flag: true # comment\n# another\nflag: false",
        "whole:\n\t-5",
    ],
)
def test_means_what_protobuf_says(text: str) -> None:
    message = text_format.Parse(text, tree()())
    expected = {
        "text": list(message.text),
        "raw": list(message.raw),
        "whole": list(message.whole),
        "real": list(message.real),
        "flag": list(message.flag),
    }
    found = plain(parse(text))
    assert {name: found[name] for name in expected} == expected
    assert len(found["inner"]) == len(message.inner)


@over(
    "text, line, words",
    [
        ("a: 1 }", 1, "found '}'"),
        ("a {\n b: 1", 2, "found the end"),
        ("a <\n b: 1\n}", 3, "found '}'"),
        ("a", 1, "expected ':' or '{', found the end"),
        ("a 1", 1, "expected ':' or '{'"),
        ("a:", 1, "expected a field or a value"),
        ("\n\na: : 1", 3, "found ':'"),
        ("a: [1 2]", 1, "expected ','"),
        ("a: [1,]", 1, "found ']'"),
        ("a: [1", 1, "expected ','"),
        ("a [1]", 1, "'{'"),
        ('a: "open\n"', 1, "found '\"open'"),
        (r'a: "\U00110000"', 1, "U00110000"),
        (r'a: "\ud800"', 1, "ud800"),
        ("a: 08", 1, "found '08'"),
        ("a: " + "9" * 5000, 1, "found '999"),
        ("a: 5x", 1, "found '5x'"),
        ("a: -true", 1, "found '-true'"),
        ("a: 1\n\0", 2, "found '\\x00'"),
        ("[a.b: 1", 1, "expected ']'"),
        ("a{" * 33 + "}" * 33, 1, "nested"),
        ("a{" * 100_000, 1, "nested"),
        ('"a": 1', 1, "expected a field"),
        ("x" * 5000, 1, "expected ':'"),
        ("a: " + "\x1b" * 5000, 1, "found '\\x1b'"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(text: str, line: int, words: str) -> None:
    with pytest.raises(TextFormatError) as caught:
        parse(text)
    assert caught.value.line == line
    message = str(caught.value)
    assert words in message
    assert message.isprintable()
    assert len(message) < 200


def test_names_of_extensions_are_names() -> None:
    (field,) = parse("[type.example.com/a.b-c] { x: 1 }")
    assert field.name == "[type.example.com/a.b-c]"
