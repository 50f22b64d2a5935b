"""What the files next to a tokenizer mean for a network, and those that do not fit it."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from models.compiler import CompileOptions, compile_onnx
from models.compiler.writing.text_config import read_text_config
from models.embedding import Embedding
from models.errors import CompileError, PackError
from models.packs.manifest import Manifest
from models.packs.pack import open_pack, read_tokenizer
from models.text.files import companions
from models.text.measuring import TokenizerFacts, measured
from models.text.recipe import Tokens
from models.text.tokenizer import HubTokenizer, TokenizerError
from tests.examples import over
from tests.models.nets import parsed
from tests.models.texts import (
    TOKENIZER_BYTES,
    TOKENS,
    VOCABULARY,
    compile_encoder,
    encoder,
    measuring,
    write_files,
)


def manifest_of(pack: Path) -> Manifest:
    return open_pack(pack).manifest


def test_a_folder_of_sentence_transformers(tmp_path: Path) -> None:
    write_files(
        tmp_path,
        tokenizer_config={"pad_token": {"content": "[PAD]"}, "model_max_length": 10**30},
        sentence_bert_config={"max_seq_length": 9, "do_lower_case": True},
        config_sentence_transformers={
            "prompts": {"query": "Ask: "},
            "default_prompt_name": "query",
            "truncate_dim": 4,
        },
    )
    manifest = manifest_of(compile_encoder(tmp_path))
    text = manifest.text
    assert text is not None
    assert (text.max_tokens, text.vocabulary, text.memory_bytes) == (9, VOCABULARY, TOKENIZER_BYTES)
    assert (text.lowercase, text.prompt, text.pad_side) == (True, "Ask: ", "right")
    assert manifest.embedding == Embedding(
        output="last_hidden_state", pooling="mean", normalise=True, dimensions=4
    )
    assert manifest.origins == {
        "tokenizer": "tokenizer.json",
        "max_tokens": "sentence_bert_config.json",
        "prompt": "config_sentence_transformers.json",
        "embedding": "modules.json",
    }
    assert read_tokenizer(open_pack(tmp_path / "repository" / "encoder")) == b"{}"


@over(
    "files, expected, origin",
    [
        ({}, None, None),
        ({"tokenizer_config": {"model_max_length": 7}}, 7, "tokenizer_config.json"),
        ({"config": {"max_position_embeddings": 8}}, 8, "config.json"),
        (
            {
                "tokenizer_config": {"model_max_length": 12},
                "config": {"max_position_embeddings": 8},
            },
            8,
            "config.json",
        ),
        (
            {
                "tokenizer_config": {"model_max_length": 7},
                "sentence_bert_config": {"max_seq_length": 11},
            },
            11,
            "sentence_bert_config.json",
        ),
        ({"sentence_bert_config": {"max_seq_length": True}}, None, None),
        ({"tokenizer_config": {"model_max_length": 10**30}}, None, None),
    ],
)
def test_the_file_that_says_how_many_tokens_there_may_be(
    tmp_path_factory: pytest.TempPathFactory,
    files: dict[str, dict[str, Any]],
    expected: int | None,
    origin: str | None,
) -> None:
    config = read_text_config(write_files(tmp_path_factory.mktemp("limit"), None, True, **files))
    assert (config.max_tokens, config.origins.get("max_tokens")) == (expected, origin)


def test_the_smaller_of_files_and_shape_counts(tmp_path: Path) -> None:
    write_files(tmp_path, sentence_bert_config={"max_seq_length": 512})
    manifest = manifest_of(compile_encoder(tmp_path))
    assert manifest.text is not None
    assert manifest.text.max_tokens == TOKENS
    assert manifest.origins["max_tokens"] == "shape of the input"


_FORMER = {"word_embedding_dimension": 8, "pooling_mode_mean_tokens": False}


@over(
    "pooling, expected",
    [
        ({"pooling_mode": "cls"}, "cls"),
        ({"pooling_mode": ["max"]}, "max"),
        ({"pooling_mode": "lasttoken", "include_prompt": False}, "last"),
        ({**_FORMER, "pooling_mode_lasttoken": True}, "last"),
        ({**_FORMER, "pooling_mode_cls_token": True}, "cls"),
        ({"embedding_dimension": 8}, "mean"),
    ],
)
def test_pooling_of_old_and_new_files(
    tmp_path_factory: pytest.TempPathFactory, pooling: dict[str, Any], expected: str
) -> None:
    config = read_text_config(write_files(tmp_path_factory.mktemp("pooling"), pooling, False))
    assert config.reasons == ()
    assert config.vector is not None
    assert (config.vector.pooling, config.vector.normalise) == (expected, False)


@over(
    "changes, words",
    [
        ({"pooling": {"pooling_mode": "weightedmean"}}, "'weightedmean': no recipe has it"),
        ({"pooling": {"pooling_mode": ["cls", "mean"]}}, "no recipe has it"),
        (
            {"pooling": {"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True}},
            "['cls', 'max']: no recipe has it",
        ),
        (
            {"modules": [{"type": "a.Transformer", "path": ""}, {"type": "a.Dense", "path": "2"}]},
            "Dense",
        ),
        ({"modules": [{"type": "a.Transformer", "path": "../x"}]}, "leaves the folder"),
        ({"modules": [1]}, "without type and path"),
        ({"modules": {"a": 1}}, "without type and path"),
        ({"tokenizer_config": []}, "not a JSON object"),
        (
            {"config_sentence_transformers": {"default_prompt_name": "a", "prompts": {}}},
            "no prompt 'a'",
        ),
        (
            {
                "pooling": {"pooling_mode": "mean", "include_prompt": False},
                "config_sentence_transformers": {
                    "default_prompt_name": "a",
                    "prompts": {"a": "b"},
                },
            },
            "include_prompt",
        ),
    ],
)
def test_what_has_no_recipe_is_a_reason(
    tmp_path_factory: pytest.TempPathFactory, changes: dict[str, Any], words: str
) -> None:
    folder = tmp_path_factory.mktemp("reasons")
    tokenizer = write_files(folder, changes.pop("pooling", {"pooling_mode": "mean"}))
    for name, document in changes.items():
        (folder / f"{name}.json").write_text(json.dumps(document))
    assert words in " ".join(read_text_config(tokenizer).reasons)


def test_reasons_are_warnings(tmp_path: Path) -> None:
    write_files(tmp_path, {"pooling_mode": "weightedmean"})
    warnings: list[str] = []
    manifest = manifest_of(compile_encoder(tmp_path, warn=warnings.append))
    assert manifest.text is not None
    assert manifest.embedding is None
    (warning,) = warnings
    assert "'weightedmean': no recipe has it; left out" in warning


@pytest.mark.parametrize("data", [b"{", b"\xff", b"[" * 9999, b"9" * 9999])
def test_damaged_files_say_nothing(tmp_path: Path, data: bytes) -> None:
    tokenizer = write_files(tmp_path)
    for name in ("modules", "tokenizer_config", "sentence_bert_config"):
        (tmp_path / f"{name}.json").write_bytes(data)
    config = read_text_config(tokenizer)
    assert config.vector is None
    assert len(config.reasons) == 3


def test_inputs_of_other_kinds(tmp_path: Path) -> None:
    write_files(tmp_path)
    inputs = ("attention_mask", "token_type_ids")
    manifest = manifest_of(compile_encoder(tmp_path, encoder(inputs=inputs)))
    assert manifest.text is not None
    assert [port.name for port in manifest.inputs] == ["input_ids", *inputs]


def test_a_tokenizer_of_another_network_is_refused(tmp_path: Path) -> None:
    write_files(tmp_path)
    with pytest.raises(CompileError, match=r"token ids up to 64, .* a table of 64"):
        compile_encoder(tmp_path, measure=measuring(VOCABULARY + 1))
    assert not (tmp_path / "repository" / "encoder").exists()


def test_a_network_too_short_for_a_text(tmp_path: Path) -> None:
    write_files(tmp_path, sentence_bert_config={"max_seq_length": 2})
    with pytest.raises(CompileError, match="adds 2 tokens"):
        compile_encoder(tmp_path)


def test_a_network_of_pictures_has_no_use_for_a_tokenizer(tmp_path: Path) -> None:
    config = read_text_config(write_files(tmp_path), measuring())
    model = parsed("g (float[1,4] x) => (float[1,4] image_embeds) { image_embeds = Relu(x) }")
    onnx.save(model, tmp_path / "eye.onnx")
    warnings: list[str] = []
    pack = compile_onnx(
        tmp_path / "eye.onnx", tmp_path / "eye", CompileOptions(text=config, warn=warnings.append)
    )
    assert not warnings
    manifest = open_pack(pack).manifest
    assert manifest.text is None
    assert manifest.embedding == Embedding(output="image_embeds")
    assert manifest.origins["embedding"] == "name of the output"
    assert not (pack / "tokenizer.json").exists()


def test_a_network_has_tensors_where_the_library_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("models.text.measuring.find_spec", lambda name: None)
    write_files(tmp_path)
    warnings: list[str] = []
    manifest = manifest_of(compile_encoder(tmp_path, measure=measured, warn=warnings.append))
    assert (manifest.text, manifest.embedding) == (None, None)
    (warning,) = warnings
    assert "pip install '.[text]' in a clone" in warning


def test_a_recipe_comes_before_files(tmp_path: Path) -> None:
    write_files(tmp_path)
    recipe = Embedding(output="last_hidden_state", pooling="cls")
    manifest = manifest_of(compile_encoder(tmp_path, embedding=recipe))
    assert manifest.embedding == recipe
    assert manifest.origins["embedding"] == "given"
    with pytest.raises(CompileError, match="no such output"):
        compile_encoder(tmp_path, embedding=Embedding(output="x"), force=True)


def test_a_pack_without_its_tokenizer(tmp_path: Path) -> None:
    write_files(tmp_path)
    pack = compile_encoder(tmp_path)
    tokenizer = pack / "1" / "tokenizer.json"
    tokenizer.write_text("[]")
    with pytest.raises(PackError, match="damaged"):
        read_tokenizer(open_pack(pack))
    tokenizer.write_text("longer")
    with pytest.raises(PackError, match="too long"):
        open_pack(pack)
    tokenizer.unlink()
    with pytest.raises(PackError, match=r"tokenizer\.json: missing"):
        open_pack(pack)


def test_a_tokenizer_needs_as_much_as_its_file(tmp_path: Path) -> None:
    write_files(tmp_path)
    with pytest.raises(CompileError, match=r"text\.memory_bytes: 1, and its file has 2"):
        compile_encoder(tmp_path, measure=measuring(n_bytes=1))


def test_files_that_change_a_pack(tmp_path: Path) -> None:
    tokenizer = write_files(tmp_path, config={})
    names = {path.relative_to(tmp_path).as_posix() for path in companions(tokenizer)}
    assert names == {
        "1_Pooling/config.json",
        "config.json",
        "modules.json",
        "tokenizer_config.json",
    }


# With the library.


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer.json of words, as BERT's."""
    tokenizers = pytest.importorskip("tokenizers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "one", "two", "three", "##s", ","]
    vocabulary = {word: index for index, word in enumerate(words)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=30)
    file = tmp_path_factory.mktemp("trained") / "tokenizer.json"
    tokenizer.save(str(file))
    return file


def test_a_tokenizer_is_measured_in_another_process(trained: Path, tmp_path: Path) -> None:
    facts = measured(trained, "[PAD]")
    assert (facts.vocabulary, facts.added, facts.pad_id) == (9, 2, 0)
    assert 0 < facts.memory_bytes < 64 << 20
    damaged = tmp_path / "tokenizer.json"
    damaged.write_bytes(trained.read_bytes()[:-9])
    with pytest.raises(TokenizerError, match="damaged"):
        measured(damaged)


def test_tokens_are_those_of_the_library(trained: Path, tmp_path: Path) -> None:
    shutil.copyfile(trained, tmp_path / "tokenizer.json")
    write_files(tmp_path, sentence_bert_config={"max_seq_length": 6})
    facts = TokenizerFacts(vocabulary=9, added=2, memory_bytes=1 << 20, pad_id=0)
    pack = open_pack(compile_encoder(tmp_path, measure=lambda path, token: facts))
    assert pack.manifest.text is not None
    tokenizer = HubTokenizer(tmp_path / "tokenizer.json", read_tokenizer(pack), pack.manifest.text)
    assert tokenizer.encode("One, twos") == Tokens([2, 4, 8, 5, 7, 3], [0] * 6, False)
    assert tokenizer.encode("One, twos three") == Tokens([2, 4, 8, 5, 7, 3], [0] * 6, True)
    assert tokenizer.encode("") == Tokens([2, 3], [0, 0], False)
    assert np.max(tokenizer.encode("☃ " * 9).ids) == 3
    with pytest.raises(ValueError, match="refuses"):
        tokenizer.encode("\ud800")


def test_a_damaged_tokenizer_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    write_files(tmp_path)
    pack = open_pack(compile_encoder(tmp_path))
    assert pack.manifest.text is not None
    with pytest.raises(PackError, match=r"tokenizer\.json: damaged"):
        HubTokenizer(tmp_path / "tokenizer.json", b"{}", pack.manifest.text)


def test_a_library_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(tmp_path)
    pack = open_pack(compile_encoder(tmp_path))
    assert pack.manifest.text is not None
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    with pytest.raises(PackError, match=r"'\.\[text\]'"):
        HubTokenizer(tmp_path / "tokenizer.json", b"{}", pack.manifest.text)
