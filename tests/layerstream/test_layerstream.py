"""The Python interface: answers of ONNX Runtime within a budget, nothing left behind."""

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx.parser import parse_model

import layerstream
from models.errors import ModelError
from models.packs.pack import open_pack, read_pack
from pipeline.budget.errors import RefusedError
from pipeline.execution.errors import DeadlineError, EngineClosedError, InputError

IMAGE = np.random.default_rng(7).random((1, 3, 8, 8), np.float32)


@pytest.fixture
def pack(pack_folder: Path) -> Path:
    return pack_folder  # plans are kept beside it


@pytest.fixture
def expected(tiny_onnx: Path) -> NDArray[Any]:
    (logits,) = ort.InferenceSession(tiny_onnx).run(None, {"image": IMAGE})
    return np.asarray(logits)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = threading.active_count()
    yield
    assert threading.active_count() == before


def test_a_file_is_compiled_opened_and_asked(
    tiny_onnx: Path, tmp_path: Path, expected: NDArray[Any]
) -> None:
    folder = layerstream.compile(tiny_onnx, tmp_path / "net")
    assert folder == tmp_path / "net" / "1"
    with layerstream.open(tmp_path / "net") as model:
        assert (model.name, model.inputs[0].name, model.outputs[0].name) == (
            "net",
            "image",
            "logits",
        )
        for inputs in (IMAGE, {"image": IMAGE}):
            np.testing.assert_allclose(model(inputs)["logits"], expected, rtol=1e-4, atol=1e-6)


def test_a_pack_of_several_shapes_answers_in_all(tmp_path: Path) -> None:
    text = """
    <ir_version: 9, opset_import: ["" : 17]>
    double (float[n, 4] x) => (float[n, 4] y) <float[1] two = {2}> { y = Mul(x, two) }
    """
    (tmp_path / "double.onnx").write_bytes(parse_model(text).SerializeToString())
    layerstream.compile(tmp_path / "double.onnx", tmp_path / "double", shapes={"batch": (1, 3)})
    with layerstream.Budget("16MiB") as budget:
        (model,) = budget.open(tmp_path / "double")
        assert [port.shape for port in (*model.inputs, *model.outputs)] == [(-1, 4), (-1, 4)]
        for count in (1, 3, 1):
            x = np.full((count, 4), count, np.float32)
            np.testing.assert_array_equal(model(x)["y"], 2 * x)
        with pytest.raises(InputError, match=r"\[2, 4\]; the model takes \[3, 4\]; \[1, 4\]"):
            model(np.zeros((2, 4), np.float32))


def test_an_input_may_have_no_axes(tmp_path: Path) -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> g (float x) => (float y) { y = Sqrt(x) }'
    source = tmp_path / "root.onnx"
    source.write_bytes(parse_model(text).SerializeToString())
    layerstream.compile(source, tmp_path / "root")
    four = np.float32(4)
    with layerstream.open(tmp_path / "root") as model:
        for inputs in (four, np.array(four), {"x": four}):
            np.testing.assert_array_equal(model(inputs)["y"], np.array(2, np.float32), strict=True)


def test_recipes_are_files_or_what_is_in_them(tiny_onnx: Path, tmp_path: Path) -> None:
    file = tmp_path / "preprocess.toml"
    file.write_text("size = [8, 8]\nstd = [255]\n")
    names = tmp_path / "labels.txt"
    labels = [str(number) for number in range(10)]
    names.write_text("\n".join(labels))
    read = layerstream.compile(tiny_onnx, tmp_path / "read", labels=names, preprocess=file)
    given = {"size": [8, 8], "std": [255]}
    made = layerstream.compile(tiny_onnx, tmp_path / "made", labels=labels, preprocess=given)
    one, other = (open_pack(folder).manifest for folder in (read, made))
    assert one.preprocess is not None
    assert one.preprocess == other.preprocess
    assert one.classification is not None
    assert one.classification.labels == tuple(labels)
    assert one.classification == other.classification
    for wrong in ({"size": [8, 0]}, {"sizes": 1}):
        with pytest.raises(ModelError, match="preprocess: size"):
            layerstream.compile(tiny_onnx, tmp_path / "bad", preprocess=wrong)


def test_a_pack_is_made_for_a_target(tiny_onnx: Path, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="the pack was not"):  # run: no GPU here
        folder = layerstream.compile(tiny_onnx, tmp_path / "net", target="cuda-sm72")
    assert read_pack(folder).manifest.target.isa == "cuda-sm72"
    with pytest.raises(ModelError, match="cannot compile for 'cuda'"):
        layerstream.compile(tiny_onnx, tmp_path / "other", target="cuda")


def test_in_the_smallest_budget_answers_are_those_of_all_memory(pack: Path) -> None:
    with layerstream.open(pack) as whole:
        answer, most = whole(IMAGE)["logits"], sum(whole.memory.values())
    with pytest.raises(RefusedError, match=r"a budget of .* is enough") as refused:
        layerstream.open(pack, budget="1KiB")
    enough = str(refused.value).split("a budget of ")[1].split(" is enough")[0]
    with layerstream.open(pack, budget=enough.replace(" ", "")) as small:
        assert sum(small.memory.values()) < most
        assert small.plan.read_bytes > 0
        np.testing.assert_array_equal(small(IMAGE)["logits"], answer)


def test_models_share_a_budget_and_give_back_what_they_held(pack: Path) -> None:
    with layerstream.Budget("4MiB") as budget:
        one, two = budget.open(pack, pack)
        held = sum(one.memory.values()) + sum(two.memory.values())
        assert budget.total_bytes - budget.free_bytes <= held <= budget.total_bytes
        np.testing.assert_array_equal(one(IMAGE)["logits"], two(IMAGE)["logits"])
        one.close()
        two.close()
        assert budget.free_bytes == budget.total_bytes
        (again,) = budget.open(pack)
    with pytest.raises(EngineClosedError):
        again(IMAGE)


def test_what_does_not_fit_leaves_those_that_are_open(pack: Path) -> None:
    with layerstream.open(pack) as model:
        n_bytes = sum(model.memory.values())
    with layerstream.Budget(n_bytes + 1024) as budget:
        (model,) = budget.open(pack)
        free = budget.free_bytes
        with pytest.raises(RefusedError, match="open models hold"):
            budget.open(pack)
        assert budget.free_bytes == free
        assert model(IMAGE)["logits"].shape == (1, 10)


async def test_the_event_loop_goes_on_and_a_request_can_be_cancelled(pack: Path) -> None:
    with layerstream.open(pack) as model:
        answers = await asyncio.gather(*(model.infer(IMAGE) for _ in range(4)))
        for answer in answers:
            np.testing.assert_array_equal(answer["logits"], answers[0]["logits"])
        asked = asyncio.create_task(model.infer({"image": IMAGE}))
        await asyncio.sleep(0)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert (await model.infer(IMAGE)).keys() == {"logits"}
    executor = asyncio.get_running_loop()
    await executor.shutdown_default_executor()


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"picture": IMAGE}, "unknown input 'picture'"),
        (IMAGE[:, :1], r"float32\[1, 1, 8, 8\]"),
        (IMAGE.astype(np.float64), "float64"),
        ({}, "image"),
    ],
)
def test_an_input_that_is_wrong_is_named(pack: Path, inputs: Any, words: str) -> None:
    with layerstream.open(pack) as model, pytest.raises(InputError, match=words):
        model(inputs)


def test_a_time_that_has_passed_is_an_error(pack: Path) -> None:
    with layerstream.open(pack) as model:
        with pytest.raises(DeadlineError):
            model(IMAGE, timeout=0.0)
        model(IMAGE, timeout=60.0)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"budget": "much"}, ValueError),
        ({"device": "tpu"}, ValueError),
        ({"budget": 0}, ValueError),
    ],
)
def test_what_is_no_budget_and_no_device(
    pack: Path, arguments: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        layerstream.open(pack, **arguments)


def test_what_is_no_pack(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="none"):
        layerstream.open(tmp_path / "none", budget="64MiB")


def test_a_package_of_the_caller_with_one_of_our_names_is_named(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "__init__.py").touch()
    root = Path(layerstream.__file__).parents[1]
    code = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(root)!r}]; import layerstream"
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60
    )
    assert "its own package 'models'" in done.stderr
    assert str(tmp_path) in done.stderr


def test_what_is_dropped_is_closed_with_a_warning(pack: Path) -> None:
    with pytest.warns(ResourceWarning, match="tiny was not closed"):
        layerstream.open(pack)


def test_a_model_keeps_the_budget_that_nobody_else_refers_to(pack: Path) -> None:
    (model,) = layerstream.Budget("4MiB").open(pack)
    gc.collect()
    assert model(IMAGE)["logits"].shape == (1, 10)
    model.close()
    assert model.memory == {}
    with pytest.warns(ResourceWarning, match="budget"):
        del model


def test_a_model_of_the_parent_is_refused_after_a_fork(
    pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with layerstream.open(pack) as model:
        monkeypatch.setattr("layerstream.budget.os.getpid", lambda: 0)
        with pytest.raises(layerstream.EngineClosedError, match="fork"):
            model(IMAGE)
        monkeypatch.undo()
        assert model(IMAGE)["logits"].shape == (1, 10)
