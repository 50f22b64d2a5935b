"""What texts in and vectors out of a model mean for its graph: what the user gave, else what files say."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from models.compiler.writing.recipes import Recipes
from models.compiler.writing.text_config import TextConfig
from models.detection.heads import Forms
from models.embedding import Embedding, embedding_fault
from models.errors import CompileError
from models.graphs.graph import Graph
from models.graphs.inputs import Warn
from models.network.catalogue import traits_of
from models.network.fields import Array
from models.network.names import Op
from models.text.measuring import TokenizerFacts
from models.text.recipe import IDS, POSITIONS, TextInput, inputs_fault
from models.text.tokenizer import NoLibraryError, TokenizerError

# Outputs that are one vector each, by the names that exporters of transformers and sentence-transformers
# give them; then the vectors of tokens.
_VECTORS = ("sentence_embedding", "text_embeds", "image_embeds")
_TOKENS = ("last_hidden_state", "token_embeddings")
_REQUESTED, _NAMED = "given", "name of the output"


@dataclass(frozen=True)
class TextRecords:
    """Fields of the manifest. ``tokenizer``: the file for the pack; ``origins``: what each is of."""

    text: TextInput | None = None
    embedding: Embedding | None = None
    tokenizer: Path | None = None
    origins: Mapping[str, str] = field(default_factory=dict)


def text_records(
    source: Path,
    read: Graph,
    graph: Graph,
    optional: frozenset[str],
    requested: Recipes,
    warn: Warn,
) -> TextRecords:
    """Return what the manifest says of texts and vectors; ``optional`` inputs need no text.

    ``read``: the graph as it was read, ``graph``: with all types. ``warn`` is called with a line for what
    files say that the graph is not.

    Raises:
        CompileError: the recipe does not fit the graph, or the tokenizer is damaged or of another network.
    """
    config = requested.text
    inputs = {name: read.array(name) for name in read.inputs if name not in optional}
    arrays = {name: graph.array(name) for name in graph.outputs}
    outputs = {name: (array.dtype, array.shape) for name, array in arrays.items()}
    records = TextRecords()
    if config is not None and IDS in inputs:
        for reason in config.reasons:
            warn(f"{source}: {reason}; left out")
        fault = inputs_fault(inputs)
        if fault is None and config.shifted and POSITIONS in inputs:
            fault = f"{POSITIONS} of this kind of network do not begin at 0"
        if fault is not None:
            warn(f"{source}: {config.tokenizer.name}: {fault}; left out: it takes no texts")
        else:
            try:
                records = _with_text(source, read, inputs, config, records)
            except NoLibraryError as exc:
                warn(f"{source}: {exc}; left out: it takes no texts")
    embedding, origin = _embedding(
        requested.embedding, config if records.text else None, outputs, warn, source
    )
    if embedding is None:
        return records
    if fault := embedding_fault(embedding, outputs):
        if origin == _REQUESTED:
            raise CompileError(f"{source}: {fault}")
        warn(f"{source}: {origin}: {fault}; left out")
        return records
    return replace(records, embedding=embedding, origins={**records.origins, "embedding": origin})


def _with_text(
    source: Path,
    read: Graph,
    inputs: Mapping[str, Array],
    config: TextConfig,
    records: TextRecords,
) -> TextRecords:
    facts = _facts(source, config)
    rows = _table_rows(read)
    if rows is not None and facts.vocabulary > rows:
        raise CompileError(
            f"{source}: {config.tokenizer}: token ids up to {facts.vocabulary - 1:,}, and the network has "
            f"a table of {rows:,}: the tokenizer is of another network; --tokenizer names its own"
        )
    length = inputs[IDS].shape[1]
    max_tokens = min(length, config.max_tokens or length)
    if facts.added >= max_tokens:
        raise CompileError(
            f"{source}: {config.tokenizer}: adds {facts.added} tokens to each text, and the network takes "
            f"{max_tokens}: no text has room"
        )
    pad_id = config.pad_id if facts.pad_id is None else facts.pad_id
    text = TextInput(
        max_tokens=max_tokens,
        vocabulary=facts.vocabulary,
        memory_bytes=facts.memory_bytes,
        pad_id=pad_id if pad_id is not None and pad_id < facts.vocabulary else 0,
        pad_side=config.pad_side,
        cut_side=config.cut_side,
        lowercase=config.lowercase,
        prompt=config.prompt,
    )
    origins = {name: file for name, file in config.origins.items() if name != "embedding"}
    if max_tokens == length and config.max_tokens != length:
        origins["max_tokens"] = "shape of the input"
    return replace(records, text=text, tokenizer=config.tokenizer, origins=origins)


def _facts(source: Path, config: TextConfig) -> TokenizerFacts:
    try:
        return config.measure(config.tokenizer, config.pad_token)
    except NoLibraryError:
        raise
    except TokenizerError as exc:
        raise CompileError(f"{source}: {exc}") from exc


def _table_rows(read: Graph) -> int | None:
    """Return how many rows the table has in which the network looks token ids up; None: it is not seen."""
    ids = {IDS}
    rows = []
    for node in read.nodes:
        if not ids.intersection(node.inputs):
            continue
        if (
            node.operator == Op.Gather
            and node.inputs[1] in ids
            and node.inputs[0] in read.constants
        ):
            rows.append(read.constants[node.inputs[0]].shape[0])
        elif traits_of(node.operator).passes_weights:  # in another shape or type
            ids.update(node.outputs)
    return min(rows, default=None)


def _embedding(
    requested: Embedding | None,
    config: TextConfig | None,
    outputs: Forms,
    warn: Warn,
    source: Path,
) -> tuple[Embedding | None, str]:
    """Return the recipe of vectors and where it comes from; None: nothing says it."""
    if requested is not None:
        return requested, _REQUESTED
    vector = None if config is None else config.vector
    named = _first(_VECTORS, outputs, 2)
    if named is not None:
        dimensions = vector.dimensions if vector else None
        return Embedding(output=named, dimensions=dimensions), _NAMED
    if config is None or vector is None:
        return None, ""
    output = _first(_TOKENS, outputs, 3) or _only(outputs)
    if output is None:
        warn(
            f"{source}: {config.origins['embedding']}: which output has the vectors of tokens is not "
            "known: --embedding; left out"
        )
        return None, ""
    embedding = Embedding(
        output=output,
        pooling=vector.pooling,
        normalise=vector.normalise,
        dimensions=vector.dimensions,
    )
    return embedding, config.origins["embedding"]


def _first(names: Sequence[str], outputs: Forms, axes: int) -> str | None:
    matches = (name for name in names if name in outputs and _is_one(outputs[name][1], axes))
    return next(matches, None)


def _is_one(shape: Sequence[int], axes: int) -> bool:
    """Return whether ``shape`` has so many axes, and the first is of one text or picture."""
    return len(shape) == axes and shape[0] == 1


def _only(outputs: Forms) -> str | None:
    """Return the one output that has a vector a token; None: none, or several."""
    matches = [
        name for name, (dtype, shape) in outputs.items() if dtype == "float32" and _is_one(shape, 3)
    ]
    return matches[0] if len(matches) == 1 else None
