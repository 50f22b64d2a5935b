"""config.pbtxt: what is read of it, what is ignored aloud, what cannot be."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.repository.model_config import (
    ConfiguredBatching,
    ModelConfig,
    ModelConfigError,
    Policy,
    model_config,
    read_model_config,
)
from server.repository.text_format import TextFormatError
from tests.examples import over

#: As Triton's own documentation has it.
TRITON = """
  name: "net"
  platform: "onnxruntime_onnx"
  max_batch_size: 8
  input [
    { name: "input0" data_type: TYPE_FP32 dims: [ 16 ] },
    { name: "input1" data_type: TYPE_FP32 dims: [ 16 ] }
  ]
  output [ { name: "output0" data_type: TYPE_FP32 dims: [ 16 ] label_filename: "labels.txt" } ]
  dynamic_batching {
    preferred_batch_size: [ 4, 8 ]
    max_queue_delay_microseconds: 100
    default_queue_policy { timeout_action: REJECT default_timeout_microseconds: 250000 }
  }
  version_policy: { specific: { versions: [1, 3] } }
  instance_group [ { count: 2 kind: KIND_CPU } ]
"""


def test_what_is_read_and_what_is_not() -> None:
    found = model_config(TRITON, "net")
    assert found == ModelConfig(
        8,
        ConfiguredBatching((4, 8), 100e-6, 0.25),
        {"output0": "labels.txt"},
        Policy(named=frozenset({1, 3})),
        found.ignored,
        policy_line=15,
    )
    assert found.default_timeout_seconds == 0.25
    assert found.ignored == {
        "platform": 3,
        "input": 5,
        "output.data_type": 9,
        "output.dims": 9,
        "dynamic_batching.default_queue_policy.timeout_action": 13,
        "instance_group": 16,
    }


@over(
    "text, expected",
    [
        ("", ModelConfig()),
        ("max_batch_size: 0 dynamic_batching { }", ModelConfig(0, ConfiguredBatching())),
        ("version_policy { all { } }", ModelConfig(policy=Policy(None))),
        ("version_policy { latest { } }", ModelConfig(policy=Policy(1))),
        ("version_policy { latest { num_versions: 3 } }", ModelConfig(policy=Policy(3))),
        (
            "dynamic_batching { default_queue_policy { default_timeout_microseconds: 0 } }",
            ModelConfig(batching=ConfiguredBatching()),
        ),
        (
            'parameters { key: "pin" value { string_value: "64MiB" } }',
            ModelConfig(pin=64 << 20),
        ),
        ('parameters { key: "pin" value { string_value: "" } }', ModelConfig(pin=0)),
        (
            'parameters { key: "other" value { number_value: 3 } }',
            ModelConfig(ignored={"parameters": 1}),
        ),
    ],
)
def test_small_ones(text: str, expected: ModelConfig) -> None:
    assert model_config(text, "net") == expected


@over(
    "text, line, words",
    [
        ("\nname: 'other'", 2, ("name", "'other'", "'net'")),
        ("name: '" + "x" * 999 + "'", 1, ("name", "...")),
        ("name: 5", 1, ("name", "text in quotes")),
        (r"name: '\377'", 1, ("name", "UTF-8")),
        ("max_batch_size: '8'", 1, ("max_batch_size", "whole number")),
        ("max_batch_size: -1", 1, ("max_batch_size", "whole number")),
        ("max_batch_size: 8.0", 1, ("max_batch_size", "whole number")),
        ("max_batch_size: 4000000000", 1, ("max_batch_size", "2147483647")),
        ("max_batch_size: 1\nmax_batch_size: 1", 2, ("max_batch_size", "twice")),
        ("dynamic_batching: 5", 1, ("dynamic_batching", "{ }")),
        ("dynamic_batching {}\nsequence_batching {}", 2, ("sequence_batching", "only one")),
        (
            "dynamic_batching { preferred_batch_size: 4 }",
            1,
            ("preferred_batch_size", "max_batch_size is 0"),
        ),
        (
            "max_batch_size: 4\ndynamic_batching { preferred_batch_size: [2, 8] }",
            2,
            ("preferred_batch_size", "8 is above max_batch_size 4"),
        ),
        (
            "max_batch_size: 4 dynamic_batching { preferred_batch_size: 0 }",
            1,
            ("preferred_batch_size", "whole number from 1"),
        ),
        ("version_policy { }", 1, ("version_policy", "found 0")),
        ("version_policy { all {} latest {} }", 1, ("version_policy", "found 2")),
        ("version_policy { specific { } }", 1, ("specific", "no versions")),
        ("version_policy { specific { versions: 0 } }", 1, ("versions", "from 1")),
        ("version_policy { latest { num_versions: 0 } }", 1, ("num_versions", "from 1")),
        ("output { label_filename: 'l' }", 1, ("output", "without the name")),
        ("output { name: 'o' label_filename: '../l' }", 1, ("output", "inside")),
        ("output { name: 'o' label_filename: '/l' }", 1, ("output", "inside")),
        (r"output { name: 'o' label_filename: 'a\0b' }", 1, ("output", "inside")),
        (
            "output [{ name: 'o' label_filename: 'a' },\n{ name: 'o' label_filename: 'b' }]",
            1,
            ("output", "two files"),
        ),
        ("max_batch_size 8", 1, ("expected",)),
    ],
)
def test_what_cannot_be_is_named(text: str, line: int, words: tuple[str, ...]) -> None:
    with pytest.raises(TextFormatError) as caught:
        model_config(text, "net")
    assert caught.value.line == line
    assert all(word in str(caught.value) for word in words)
    assert len(str(caught.value)) < 200


def test_a_file_is_named_with_its_line(tmp_path: Path) -> None:
    folder = tmp_path / "net"
    folder.mkdir()
    assert read_model_config(folder) == ModelConfig()
    file = folder / "config.pbtxt"
    for content, words in (
        (b"\n\nmax_batch_size: x", f"{file}:3: max_batch_size: "),
        (b"\n\xff", f"{file}:2: not UTF-8"),
        (b" " * (1 << 20) + b"#", f"{file}: larger than"),
    ):
        file.write_bytes(content)
        with pytest.raises(ModelConfigError) as caught:
            read_model_config(folder)
        assert str(caught.value).startswith(words)
    file.unlink()
    file.mkdir()
    with pytest.raises(ModelConfigError, match="directory"):
        read_model_config(folder)


@given(
    latest=st.none() | st.integers(1, 4),
    named=st.frozensets(st.integers(1, 9)),
    there=st.sets(st.integers(1, 9)),
)
def test_policies(latest: int | None, named: frozenset[int], there: set[int]) -> None:
    policy = Policy(latest, named)
    wanted = policy.wanted(list(there))
    assert wanted == sorted(set(wanted))
    assert there.issuperset(wanted)
    assert len(wanted) <= 1 or policy.is_of_several
    if named:
        assert set(wanted) == there & named
    elif latest is None:
        assert set(wanted) == there
    else:
        assert len(wanted) == min(latest, len(there))
        assert all(left < min(wanted) for left in there.difference(wanted))
