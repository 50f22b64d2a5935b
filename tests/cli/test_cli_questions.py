"""What the lines of `up` say of a network that takes photographs and has no recipe for them."""

from pathlib import Path

import pytest

from cli.questions import question, recipe_hint
from models.packs.pack import open_pack
from models.packs.records.ports import Port
from server.settings.settings import Settings
from tests.models.texts import compile_encoder, write_files


def port(*shape: int) -> Port:
    return Port(dtype="float32", shape=shape, name="x", value=0)


@pytest.mark.parametrize(
    ("shape", "keys"),
    [
        ((1, 3, 240, 320), "a key a line: size = [320, 240], and mean"),
        ((1, 240, 320, 3), 'a key a line: size = [320, 240], layout = "NHWC", and mean'),
        ((1, 1, 28, 28), 'a key a line: size = [28, 28], color = "GRAY", and mean'),
        ((1, 28, 28, 1), 'size = [28, 28], layout = "NHWC", color = "GRAY", and mean'),
    ],
)
def test_the_hint_has_the_keys_that_the_input_decides(shape: tuple[int, ...], keys: str) -> None:
    hint = recipe_hint([port(*shape)], Path("folder/net.onnx"))
    assert hint.startswith("  # to send photographs say in net.preprocess.toml next to it")
    assert keys in hint


@pytest.mark.parametrize("ports", [[port(1, 8, 32, 32)], [port(1, 3)], [port(1, 3, 8, 8)] * 2])
def test_there_is_no_hint_for_what_is_no_picture(ports: list[Port]) -> None:
    assert recipe_hint(ports, Path("net.onnx")) == ""


@pytest.mark.parametrize(("pooling", "verb"), [({"pooling_mode": "cls"}, "embed"), (None, "infer")])
def test_a_model_of_texts_gets_a_text(
    tmp_path: Path, pooling: dict[str, str] | None, verb: str
) -> None:
    write_files(tmp_path, pooling)
    manifest = open_pack(compile_encoder(tmp_path)).manifest
    settings = Settings(repository=tmp_path, budget=1 << 26)
    command = question(
        manifest, "encoder", "http://0.0.0.0:80", settings, tmp_path / "encoder.onnx"
    )
    assert command.endswith(
        f"""-d '{{"text": "A cat sits on the mat."}}' http://127.0.0.1:80/v2/models/encoder:{verb}"""
    )
