"""A tiny text encoder with files as Hugging Face writes them, and a tokenizer that needs no library."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from models.compiler import CompileOptions, compile_onnx
from models.compiler.writing.text_config import Measuring, read_text_config
from models.packs.pack import Pack
from models.text.fakes import WordTokenizer
from models.text.measuring import TokenizerFacts

TOKENS, WIDTH, VOCABULARY = 16, 8, 64
PAD = 0
#: Of the fake tokenizer: plans count so much.
TOKENIZER_BYTES = 3 << 20
_MEAN = {"word_embedding_dimension": WIDTH, "pooling_mode_mean_tokens": True}


def encoder(
    tokens: int | str = TOKENS,
    rows: int = VOCABULARY,
    inputs: Sequence[str] = ("attention_mask",),
    labels: int = 0,
) -> onnx.ModelProto:
    """A vector for each token: of a table, and of the mean of all tokens that the mask has.

    ``labels``: it has so many scores of the text instead.
    """
    generator = np.random.default_rng(5)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array(generator.standard_normal(shape).astype(np.float32), name)

    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["found"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "axis"], ["column"]),
        helper.make_node("Mul", ["found", "column"], ["kept"]),
        helper.make_node("ReduceSum", ["kept", "one"], ["sum"], keepdims=1),
        helper.make_node("ReduceSum", ["column", "one"], ["count"], keepdims=1),
        helper.make_node("Div", ["sum", "count"], ["mean"]),
        helper.make_node("Add", ["found", "mean"], ["mixed"]),
        helper.make_node("MatMul", ["mixed", "dense"], ["turned"]),
        helper.make_node("Tanh", ["turned"], ["last_hidden_state"]),
    ]
    names = ["input_ids", *inputs]
    if "token_type_ids" in inputs:
        nodes[7:8] = [
            helper.make_node("Gather", ["kinds", "token_type_ids"], ["kind"]),
            helper.make_node("Add", ["found", "kind"], ["typed"]),
            helper.make_node("Add", ["typed", "mean"], ["mixed"]),
        ]
    constants = [
        weight("table", rows, WIDTH),
        weight("dense", WIDTH, WIDTH),
        weight("kinds", 2, WIDTH),
    ]
    constants += [
        numpy_helper.from_array(np.array([value]), name)
        for name, value in (("axis", 2), ("one", 1))
    ]
    if "token_type_ids" not in inputs:
        constants.pop(2)
    ports = [helper.make_tensor_value_info(name, TensorProto.INT64, (1, tokens)) for name in names]
    answer = helper.make_tensor_value_info(
        "last_hidden_state", TensorProto.FLOAT, (1, tokens, WIDTH)
    )
    if labels:
        nodes += [
            helper.make_node("ReduceMean", ["last_hidden_state"], ["all"], axes=[1], keepdims=0),
            helper.make_node("MatMul", ["all", "head"], ["logits"]),
        ]
        constants.append(weight("head", WIDTH, labels))
        answer = helper.make_tensor_value_info("logits", TensorProto.FLOAT, (1, labels))
    graph = helper.make_graph(nodes, "encoder", ports, [answer], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def write_files(
    folder: Path,
    pooling: dict[str, Any] | None = _MEAN,
    normalise: bool = True,
    **files: dict[str, Any],
) -> Path:
    """Write the files of sentence-transformers, and others by their names; return the tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = folder / "tokenizer.json"
    if not tokenizer.exists():
        tokenizer.write_text("{}")
    written: dict[str, Any] = {"tokenizer_config": {"pad_token": "[PAD]"}, **files}
    if pooling is not None:
        kinds = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")]
        written["modules"] = [
            {
                "idx": index,
                "name": str(index),
                "path": path,
                "type": f"sentence_transformers.models.{kind}",
            }
            for index, (kind, path) in enumerate(kinds[: 3 if normalise else 2])
        ]
        (folder / "1_Pooling").mkdir(exist_ok=True)
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    for name, document in written.items():
        (folder / f"{name}.json").write_text(json.dumps(document))
    return tokenizer


def measuring(vocabulary: int = VOCABULARY, n_bytes: int = TOKENIZER_BYTES) -> Measuring:
    """Stand for the measurement of a tokenizer."""
    facts = TokenizerFacts(vocabulary=vocabulary, added=2, memory_bytes=n_bytes, pad_id=PAD)
    return lambda path, pad_token: facts


def compile_encoder(
    folder: Path,
    model: onnx.ModelProto | None = None,
    measure: Measuring | None = None,
    name: str = "encoder",
    **options: Any,
) -> Path:
    """Compile the encoder, with the files in ``folder``, to ``folder``/repository/NAME; return that."""
    tokenizer = folder / "tokenizer.json"
    source = folder / f"{name}.onnx"
    onnx.save(model or encoder(), source)
    text = read_text_config(tokenizer, measure or measuring()) if tokenizer.exists() else None
    pack = folder / "repository" / name
    compile_onnx(source, pack, CompileOptions(text=text, **options))
    return pack


OPENING = "server.repository.environment.RepositoryEnvironment.open_tokenizer"


def open_fake(environment: object, pack: Pack) -> WordTokenizer | None:
    """Stand for ``OPENING``: a tokenizer without a file or a library."""
    return None if pack.manifest.text is None else WordTokenizer(pack.manifest.text)


def expected_tokens(source: Path, ids: NDArray[Any], mask: NDArray[Any]) -> NDArray[np.float32]:
    """What ONNX Runtime makes of padded tokens."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(source))
    inputs = {"input_ids": ids, "attention_mask": mask}
    answer: NDArray[np.float32] = session.run(None, inputs)[0]
    return answer
