"""ONNX files that cannot be used, one by one; and what the reader makes of those that can."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from models.errors import OnnxError
from models.graphs.file import MAX_TENSOR_BYTES, reference
from models.graphs.onnx_reader import ReadOptions, read_onnx, source_files
from tests.examples import over
from tests.models.nets import (
    WEIGHT_BYTES,
    dynamic,
    external,
    one_layer,
    parsed,
    residual,
    shapes_of,
    written,
)
from tests.models.refusal import refuses


def save(tmp_path: Path, model: onnx.ModelProto) -> Path:
    return written(model, tmp_path / "m.onnx")


# Files that are not models


@over(
    "content",
    [
        b"",
        b"This is a text, and not a model.\n",
        b'{"ir_version": 9}',
        b"\x89PNG\r\n\x1a\n" + bytes(64),
        random.Random(7).randbytes(4096),
    ],
    ids=["empty", "text", "json", "png", "random"],
)
def test_other_files_are_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with refuses(OnnxError, path, "not an ONNX model"):
        read_onnx(path)


@over("name", ["m.onnxtxt", "m.textproto", "m.json", "m.onnxjson", "m"])
def test_format_is_not_guessed_from_the_name(name: str, tmp_path: Path) -> None:
    path = written(one_layer(), tmp_path / name)
    assert read_onnx(path).graph.node[0].op_type == "Conv"
    path.write_text("{ no model")
    with refuses(OnnxError, path, "not an ONNX model"):
        read_onnx(path)


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    data = residual().SerializeToString()
    path = tmp_path / "m.onnx"
    for size in random.Random(1).sample(range(len(data)), 40):
        path.write_bytes(data[:size])
        with refuses(OnnxError, path):
            read_onnx(path)


def test_missing_file_and_folder_are_refused(tmp_path: Path) -> None:
    with refuses(OnnxError, tmp_path / "none.onnx", "No such file"):
        read_onnx(tmp_path / "none.onnx")
    with refuses(OnnxError, tmp_path, "directory"):
        read_onnx(tmp_path)


def test_model_without_nodes_is_refused(tmp_path: Path) -> None:
    model = one_layer()
    del model.graph.node[:]
    path = save(tmp_path, model)
    with refuses(OnnxError, f"{path}: the graph has no nodes", "nothing is computed"):
        read_onnx(path)


# Tensors


@over(
    "changes, reason",
    [
        ({"dims": [8, -4, 1, 1]}, "negative dimension in [8, -4, 1, 1]"),
        ({"dims": [-1, -32, 1, 1]}, "negative dimension"),
        ({"dims": [1 << 62, 1 << 62, 1, 1]}, "overflow"),
        ({"dims": [MAX_TENSOR_BYTES]}, "overflow"),
        ({"dims": [8, 4, 1, 2]}, f"holds {WEIGHT_BYTES} bytes, its dimensions say 256"),
        ({"dims": [0, 4, 1, 1]}, f"holds {WEIGHT_BYTES} bytes, its dimensions say 0"),
        ({"dims": []}, f"holds {WEIGHT_BYTES} bytes, its dimensions say 4"),
        ({"raw_data": bytes(WEIGHT_BYTES - 1)}, f"holds {WEIGHT_BYTES - 1} bytes"),
        ({"raw_data": b""}, "holds 0 bytes"),
        ({"data_type": TensorProto.DOUBLE}, f"holds {WEIGHT_BYTES} bytes"),
        ({"data_type": TensorProto.STRING}, "strings can only be in the message"),
        ({"data_type": TensorProto.UNDEFINED}, "unknown data type 0"),
        ({"data_type": 4711}, "unknown data type 4711"),
    ],
)
def test_impossible_weights_are_refused(
    changes: dict[str, object], reason: str, tmp_path: Path
) -> None:
    path = save(tmp_path, one_layer(**changes))
    with refuses(OnnxError, path, "tensor 'w'", reason):
        read_onnx(path)


def test_segmented_tensors_are_refused(tmp_path: Path) -> None:
    model = one_layer()
    model.graph.initializer[0].segment.begin = 0
    path = save(tmp_path, model)
    with refuses(OnnxError, path, "tensor 'w'", "segments"):
        read_onnx(path)


@over("count", [0, 1, 31, 33])
def test_typed_data_must_have_the_size_of_the_dimensions(count: int, tmp_path: Path) -> None:
    model = one_layer()
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.float_data.extend([0.5] * count)
    path = save(tmp_path, model)
    with refuses(OnnxError, path, "tensor 'w'", f"holds {count} numbers, its dimensions say 32"):
        read_onnx(path)


@over(
    "data_type, field, values",
    [
        (TensorProto.FLOAT, "float_data", [0.5] * 6),
        (TensorProto.DOUBLE, "double_data", [0.5] * 6),
        (TensorProto.INT64, "int64_data", range(6)),
        (TensorProto.UINT64, "uint64_data", range(6)),
        (TensorProto.UINT8, "int32_data", range(6)),
        (TensorProto.FLOAT16, "int32_data", range(6)),
        (TensorProto.BOOL, "int32_data", [1, 0] * 3),
        (TensorProto.INT4, "int32_data", range(3)),
        (TensorProto.COMPLEX64, "float_data", [0.5] * 12),
    ],
)
def test_typed_data_of_the_right_size_is_read(
    data_type: int, field: str, values: Sequence[float], tmp_path: Path
) -> None:
    model = one_layer()
    tensor = model.graph.initializer.add(name="extra", data_type=data_type, dims=[2, 3])
    getattr(tensor, field).extend(values)
    assert read_onnx(save(tmp_path, model)).graph.initializer[1].name == "extra"


def test_constants_in_branches_are_checked_too(tmp_path: Path) -> None:
    weight = TensorProto(name="bad", data_type=TensorProto.FLOAT, dims=[1000])
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="../outside")
    branch = helper.make_graph(
        [helper.make_node("Identity", ["bad"], ["z"])],
        "branch",
        [],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, [1000])],
        [weight],
    )
    node = helper.make_node("If", ["x"], ["y"], then_branch=branch, else_branch=branch)
    x = helper.make_tensor_value_info("x", TensorProto.BOOL, [])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1000])
    path = save(tmp_path, helper.make_model(helper.make_graph([node], "g", [x], [y])))
    with refuses(OnnxError, path, "tensor 'bad'", "leaves the model's folder"):
        read_onnx(path)


def test_constants_in_attributes_are_checked_too(tmp_path: Path) -> None:
    model = parsed("g (float[1,4] x) => (float[1,4] y) { c = Constant()\n y = Add(x, c) }")
    tensor = TensorProto(name="bad", data_type=TensorProto.STRING, dims=[2], string_data=[b"text"])
    model.graph.node[0].attribute.append(helper.make_attribute("value", tensor))
    path = save(tmp_path, model)
    with refuses(OnnxError, path, "tensor 'bad'", "holds 1 strings, its dimensions say 2"):
        read_onnx(path)


def test_messages_stay_one_line_whatever_names_hold(tmp_path: Path) -> None:
    path = save(tmp_path, one_layer(name="w\n\x1b[31mred\u2028", dims=[-1]))
    with refuses(OnnxError, path, "negative dimension"):
        read_onnx(path)
    model = dynamic("1,n")
    model.graph.input[0].name = "x\ny"
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "n\nm\x1b[0m"
    path = save(tmp_path, model)
    with refuses(OnnxError, path, "is dynamic"):
        read_onnx(path)


def test_attribute_references_outside_of_functions_are_refused(tmp_path: Path) -> None:
    model = one_layer()
    model.graph.node[0].name = "conv"
    model.graph.node[0].attribute.add(name="group", ref_attr_name="other", type=2)
    path = save(tmp_path, model)
    with refuses(OnnxError, path, "node 'conv'", "refers to an attribute"):
        read_onnx(path)


@over("name", [b"conv", b"weight", b"input", b"w.data"])
def test_names_that_are_not_utf8_are_refused(name: bytes, tmp_path: Path) -> None:
    model = external("w.data")
    model.graph.node[0].name = "conv"
    model.graph.node[0].input[1] = model.graph.initializer[0].name = "weight"
    model.graph.node[0].input[0] = model.graph.input[0].name = "input"
    (tmp_path / "w.data").write_bytes(bytes(WEIGHT_BYTES))
    data = model.SerializeToString()
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    read_onnx(path)
    path.write_bytes(data.replace(name, b"\xff" * len(name)))
    with refuses(OnnxError, path, "not UTF-8"):
        read_onnx(path)


# External data


def test_external_data_becomes_part_of_the_model(tmp_path: Path) -> None:
    values = np.arange(32, dtype=np.float32)
    folder = tmp_path / "below"
    folder.mkdir()
    (folder / "w.data").write_bytes(bytes(64) + values.tobytes() + bytes(64))
    model = external("below/w.data", offset="64", length=str(WEIGHT_BYTES))
    (tensor,) = read_onnx(save(tmp_path, model)).graph.initializer
    assert np.array_equal(numpy_helper.to_array(tensor).ravel(), values)
    assert tensor.data_location == TensorProto.DEFAULT


def test_external_data_without_a_length_takes_what_its_dimensions_say(tmp_path: Path) -> None:
    (tmp_path / "w.data").write_bytes(bytes(WEIGHT_BYTES + 100))
    (tensor,) = read_onnx(save(tmp_path, external("w.data"))).graph.initializer
    assert len(tensor.raw_data) == WEIGHT_BYTES


def test_unknown_keys_of_external_data_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "w.data").write_bytes(bytes(WEIGHT_BYTES))
    path = save(tmp_path, external("w.data", basepath="/", checksum="0", surprise="1"))
    assert len(read_onnx(path).graph.initializer[0].raw_data) == WEIGHT_BYTES


def test_missing_external_data_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path, external("w.data"))
    with refuses(OnnxError, path, "tensor 'w' of node", "'w.data' is missing"):
        read_onnx(path)


def test_external_data_that_is_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "w.data").mkdir()
    path = save(tmp_path, external("w.data"))
    with refuses(OnnxError, path, "tensor 'w' of node", "'w.data' is missing"):
        read_onnx(path)


@pytest.mark.parametrize(
    "location", ["", "../w.data", "sub/../../w.data", "/etc/hostname", "../model/../w.data"]
)
def test_external_paths_that_climb_out_are_refused(location: str, tmp_path: Path) -> None:
    (tmp_path / "w.data").write_bytes(bytes(WEIGHT_BYTES))
    (tmp_path / "model").mkdir()
    path = save(tmp_path / "model", external(location))
    with refuses(OnnxError, path, "tensor 'w'", repr(location), "leaves the model's folder"):
        read_onnx(path)


def test_absolute_path_is_refused_even_beside_the_model(tmp_path: Path) -> None:
    (tmp_path / "w.data").write_bytes(bytes(WEIGHT_BYTES))
    path = save(tmp_path, external(str(tmp_path / "w.data")))
    with refuses(OnnxError, path):
        read_onnx(path)


@pytest.mark.parametrize("through_folder", [False, True])
def test_symlinks_that_climb_out_are_refused(through_folder: bool, tmp_path: Path) -> None:
    outside, model = tmp_path / "outside", tmp_path / "model"
    outside.mkdir()
    model.mkdir()
    (outside / "w.data").write_bytes(bytes(WEIGHT_BYTES))
    if through_folder:
        (model / "sub").symlink_to(outside)
        location = "sub/w.data"
    else:
        (model / "w.data").symlink_to(outside / "w.data")
        location = "w.data"
    path = save(model, external(location))
    with refuses(OnnxError, path, "tensor 'w'", "leaves the model's folder"):
        read_onnx(path)


def cached(tmp_path: Path, location: str = "w.data") -> Path:
    """Return the model in a snapshot of huggingface_hub's cache: it and its data are links to blobs."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "1f0a" / "onnx"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    (blobs / "d3").write_bytes(bytes(WEIGHT_BYTES))
    written(external(location), blobs / "a7")
    for name, blob in (("m.onnx", "a7"), ("w.data", "d3")):
        (snapshot / name).symlink_to(f"../../../blobs/{blob}")
    return snapshot / "m.onnx"


def test_links_to_blobs_are_followed(tmp_path: Path) -> None:
    path = cached(tmp_path)
    assert not any(numpy_helper.to_array(read_onnx(path).graph.initializer[0]).ravel())
    (tmp_path / "by_folder").symlink_to(path.parent)
    read_onnx(tmp_path / "by_folder" / "m.onnx")
    assert source_files(path) == [path, path.parent / "w.data"]


def test_a_link_from_a_snapshot_to_elsewhere_is_refused(tmp_path: Path) -> None:
    path = cached(tmp_path)
    (tmp_path / "w.data").write_bytes(bytes(WEIGHT_BYTES))
    (path.parent / "w.data").unlink()
    (path.parent / "w.data").symlink_to(tmp_path / "w.data")
    with refuses(OnnxError, path, "tensor 'w'", "leaves the model's folder"):
        read_onnx(path)


def test_a_snapshot_names_no_blob(tmp_path: Path) -> None:
    """A path in the file does not climb, though it would reach where links may lead."""
    path = cached(tmp_path, "../../../blobs/d3")
    with refuses(OnnxError, path, "tensor 'w'", "leaves the model's folder"):
        read_onnx(path)


@pytest.mark.parametrize("location", ["loop", "a\0b", "x" * 300, "loop/" * 100])
def test_paths_that_the_system_refuses_are_refused(location: str, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    path = save(tmp_path, external(location))
    with refuses(OnnxError, path, "tensor 'w'"):
        read_onnx(path)


@over(
    "entries",
    [
        {"length": "64"},
        {"length": str(WEIGHT_BYTES + 4)},
        {"offset": "4"},
        {"offset": "-4"},
        {"offset": str(1 << 70)},
        {"offset": "nan"},
        {"length": "many"},
        {"length": "-128"},
    ],
)
def test_external_ranges_that_do_not_fit_are_refused(
    entries: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "w.data").write_bytes(bytes(WEIGHT_BYTES))
    path = save(tmp_path, external("w.data", **entries))
    with refuses(OnnxError, path, "tensor 'w'", "external data"):
        read_onnx(path)


# Shapes


def test_pictures_say_what_the_one_input_leaves_open(tmp_path: Path) -> None:
    path = save(tmp_path, dynamic("batch,3,height,width"))
    (value,) = read_onnx(path, picture=(1, 3, 8, 6)).graph.input
    assert [dim.dim_value for dim in value.type.tensor_type.shape.dim] == [1, 3, 8, 6]
    (value,) = read_onnx(path, ReadOptions(shapes={"x": (1, 3, 4, 4)}), (1, 3, 8, 6)).graph.input
    assert [dim.dim_value for dim in value.type.tensor_type.shape.dim] == [1, 3, 4, 4]
    with refuses(OnnxError, save(tmp_path, dynamic("1,n")), "is dynamic"):
        read_onnx(path, picture=(1, 3, 8, 6))


@over(
    "dims, problem",
    [
        ("1,n,4,4", "dimension 1 (n) is dynamic"),
        ("batch,3,height,width", "dimension 2 (height) is dynamic"),
        ("1,nan", "dimension 1 (nan) is dynamic"),
        ("1,0", "dimension 1 (?) is dynamic"),
    ],
)
def test_dynamic_shapes_are_refused(dims: str, problem: str, tmp_path: Path) -> None:
    path = save(tmp_path, dynamic(dims))
    with refuses(OnnxError, path, "input 'x'", problem, "--shape x="):
        read_onnx(path)


@over(
    "inputs, options",
    [
        ("float[n,3,h,w] x", "--shape x=1,3,N,N"),
        ("float[1,h] x, float[2,n,128] z", "--shape x=1,N --shape z=2,N,128"),
        ("float[1,3] x, float[2,n] z", "--shape z=2,N"),
        (
            "float[1,h] x, float[n] a, float[1,h] b, float[1,h] c, float[1,h] d",
            "--shape x=1,N --shape b=1,N --shape c=1,N and 1 more",
        ),
    ],
)
def test_a_refusal_has_the_options_for_all_dynamic_inputs(
    inputs: str, options: str, tmp_path: Path
) -> None:
    path = save(tmp_path, parsed(f"g ({inputs}) => (float y) {{ y = Relu(x) }}"))
    with refuses(OnnxError, path, f"fix it with a number for each N in {options}"):
        read_onnx(path)


def test_minus_one_is_an_unknown_length(tmp_path: Path) -> None:
    """As some exporters write it: what is advised is taken, and so is a batch."""
    model = dynamic("1,3,h")
    batch, _, length = model.graph.input[0].type.tensor_type.shape.dim
    batch.dim_value = -1
    path = save(tmp_path, model)
    with refuses(OnnxError, path, "dimension 2 (h) is dynamic", "--shape x=1,3,N"):
        read_onnx(path)
    length.dim_value = 4
    assert shapes_of(read_onnx(save(tmp_path, model))) == {"x": (1, 3, 4)}
    assert shapes_of(read_onnx(path, ReadOptions(batch=2))) == {"x": (2, 3, 4)}
    length.dim_value = -1
    with refuses(OnnxError, save(tmp_path, model), "dimension 2 (?) is dynamic", "--shape x=1,3,N"):
        read_onnx(path)


def test_options_of_a_refusal_are_quoted_for_a_shell(tmp_path: Path) -> None:
    model = dynamic("1,h")
    model.graph.input[0].name = model.graph.node[0].input[0] = "das Bild"
    with refuses(OnnxError, save(tmp_path, model), "--shape 'das Bild=1,N'"):
        read_onnx(tmp_path / "m.onnx")


def test_unknown_rank_is_refused(tmp_path: Path) -> None:
    model = dynamic("1,4")
    model.graph.input[0].type.tensor_type.ClearField("shape")
    path = save(tmp_path, model)
    with refuses(OnnxError, path, "input 'x'", "shape unknown", "--shape x="):
        read_onnx(path)
    assert shapes_of(read_onnx(path, ReadOptions(shapes={"x": (2, 5)}))) == {"x": (2, 5)}


def test_a_shape_that_is_not_the_one_in_the_file_is_said(tmp_path: Path) -> None:
    path, said = save(tmp_path, dynamic("1,4")), list[str]()
    read_onnx(path, ReadOptions(shapes={"x": (1, 4)}, warn=said.append))
    assert said == []
    read_onnx(path, ReadOptions(shapes={"x": (1, 8)}, warn=said.append))
    assert said == [f"{path}: input 'x' is [1, 4] in the file, [1, 8] by --shape"]
    said.clear()
    model = dynamic("1,4")
    model.graph.input[0].type.tensor_type.shape.dim[
        0
    ].dim_value = -1  # as some exporters say unknown
    read_onnx(save(tmp_path, model), ReadOptions(shapes={"x": (2, 4)}, warn=said.append))
    assert said == []


def test_a_batch_that_is_left_open_is_said(tmp_path: Path) -> None:
    path, said = save(tmp_path, dynamic("N,4")), list[str]()
    read_onnx(path, ReadOptions(batch=1, warn=said.append))
    read_onnx(path, ReadOptions(shapes={"x": (1, 4)}, warn=said.append))
    assert said == []
    read_onnx(path, ReadOptions(warn=said.append))
    first = "leaves its first dimension open: it is 1, and another number with --shape x=N,4"
    assert said == [f"{path}: input 'x' {first}"]


@pytest.mark.parametrize("length", [-2, -(1 << 63)])
def test_negative_input_dimensions_are_refused(length: int, tmp_path: Path) -> None:
    model = dynamic("1,4")
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = length
    path = save(tmp_path, model)
    with refuses(OnnxError, path, "input 'x'", f"dimension 1 is {length}"):
        read_onnx(path)


def test_overflowing_input_dimensions_are_refused(tmp_path: Path) -> None:
    model = dynamic("1,4")
    for dim in model.graph.input[0].type.tensor_type.shape.dim:
        dim.dim_value = (1 << 63) - 1
    path = save(tmp_path, model)
    with refuses(OnnxError, path, "input 'x'", "overflow"):
        read_onnx(path)


@over("shape", [(1, 1 << 63), (1, 1 << 62), (1, -4)])
def test_impossible_shapes_asked_for_are_refused(shape: tuple[int, ...], tmp_path: Path) -> None:
    path = save(tmp_path, dynamic("1,n"))
    with refuses(OnnxError, path, "input 'x'", shape[1]):
        read_onnx(path, ReadOptions(shapes={"x": shape}))


@pytest.mark.parametrize("batch", [0, -1])
def test_impossible_batch_is_refused(batch: int, tmp_path: Path) -> None:
    path = save(tmp_path, dynamic("n,4"))
    with refuses(OnnxError, path, "input 'x'", f"dimension 0 is {batch}"):
        read_onnx(path, ReadOptions(batch=batch))


@given(batch=st.integers(1, 1 << 20))
def test_batch_fixes_only_an_unknown_first_dimension(
    batch: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("batch")
    model = parsed("g (float[n,4] x, float[2,4] z) => (float y) { y = Concat<axis=0>(x, z) }")
    fixed = read_onnx(written(model, folder / "m.onnx"), ReadOptions(batch=batch))
    assert shapes_of(fixed) == {"x": (batch, 4), "z": (2, 4)}


def test_shape_fixes_the_whole_input(tmp_path: Path) -> None:
    path = save(tmp_path, dynamic("n,3,height,width"))
    assert shapes_of(read_onnx(path, ReadOptions(shapes={"x": (2, 3, 8, 9)}))) == {
        "x": (2, 3, 8, 9)
    }
    with refuses(OnnxError, path, "input 'x'", "has 4 dimensions, not 3"):
        read_onnx(path, ReadOptions(shapes={"x": (3, 8, 9)}))
    with refuses(OnnxError, path, "no input called z"):
        read_onnx(path, ReadOptions(shapes={"x": (2, 3, 8, 9), "z": (1,)}))


@pytest.mark.parametrize("kind", ["sequence", "untyped"])
def test_inputs_that_are_no_tensors_are_refused(kind: str, tmp_path: Path) -> None:
    model = dynamic("1,4")
    if kind == "sequence":
        element = helper.make_tensor_type_proto(TensorProto.FLOAT, [1])
        model.graph.input[0].type.CopyFrom(helper.make_sequence_type_proto(element))
    else:
        model.graph.input[0].ClearField("type")
    path = save(tmp_path, model)
    with refuses(OnnxError, path, "input 'x' is not a tensor"):
        read_onnx(path)


# The model that comes back


def test_weights_listed_as_inputs_become_constants(tmp_path: Path) -> None:
    model = one_layer()
    model.ir_version = 3
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [8, 4, 1, 1]))
    fixed = read_onnx(save(tmp_path, model))
    assert [value.name for value in fixed.graph.input] == ["x"]
    assert fixed.ir_version >= 4


@over("make", [residual, one_layer, lambda: dynamic("n,4")])
def test_every_shape_is_static_and_every_weight_is_there(
    make: Callable[[], onnx.ModelProto], tmp_path: Path
) -> None:
    fixed = read_onnx(save(tmp_path, make()))
    weights = {tensor.name for tensor in fixed.graph.initializer}
    assert all(length > 0 for shape in shapes_of(fixed).values() for length in shape)
    assert not weights & set(shapes_of(fixed))
    for tensor in fixed.graph.initializer:
        held = reference(tensor)
        assert held is None or held.offset + held.length <= held.path.stat().st_size
