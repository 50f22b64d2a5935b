"""What images and answers of a model mean: what the user gave, else what the file says about itself."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from models.compiler.writing.configured import configured_depth, configured_recipes
from models.compiler.writing.exported import exported_recipes
from models.compiler.writing.hub_config import HubConfig
from models.compiler.writing.text_config import TextConfig
from models.depth import Depth
from models.detection.heads import Forms
from models.detection.recipe import Detection, head_fault
from models.detection.suggestion import listed_head
from models.embedding import Embedding
from models.errors import CompileError
from models.graphs.graph import Graph
from models.graphs.inputs import Warn
from models.graphs.metadata import LABELS, PREPROCESS, Metadata
from models.images.preprocess import Layout, Preprocess
from models.network.catalogue import traits_of
from models.network.fields import Array
from models.network.names import Op
from models.packs.records.ports import Classification, Scores
from models.segmentation import Segmentation, segmentation_fault

# Of a picture, with transparency.
_CHANNELS = 4


@dataclass(frozen=True)
class Recipes:
    """What the user gave; fields that are None or empty are left to the file's metadata.

    ``configs``: files that say what neither does, the first counts. ``text``: the tokenizer, and files
    next to it.
    """

    preprocess: Preprocess | None = None
    detection: Detection | None = None
    segmentation: Segmentation | None = None
    labels: tuple[str, ...] = ()
    scores: Scores | None = None
    configs: tuple[HubConfig, ...] = ()
    embedding: Embedding | None = None
    text: TextConfig | None = None


@dataclass(frozen=True)
class RecipeRecords:
    """Fields of the manifest. ``origins``: where the recipes and labels come from, by field."""

    preprocess: Preprocess | None
    classification: Classification | None
    detection: Detection | None
    segmentation: Segmentation | None
    depth: Depth | None
    origins: Mapping[str, str]


# Fields of recipes.
_FIELDS = ("preprocess", "detection", "segmentation", "labels")
# Where they come from; configuration files are named.
_REQUESTED, _METADATA, _EXPORTER = "given", "metadata of layerstream", "metadata of the exporter"


def recipe_records(
    source: Path,
    graph: Graph,
    given: Recipes,
    metadata: Metadata,
    optional: frozenset[str] = frozenset(),
    warn: Warn = lambda text: None,
) -> RecipeRecords:
    """Return what the manifest says about images in and answers out; images skip ``optional`` inputs.

    ``warn`` is called with a line for what an exporter says that the graph is not.

    Raises:
        CompileError: a recipe does not fit the graph; the message says where it comes from.
    """
    inputs = {name: graph.array(name) for name in graph.inputs if name not in optional}
    shapes = [array.shape for array in inputs.values()]
    if any(len(shape) > 1 and shape[0] != 1 for shape in shapes):
        # The file speaks of one image; a pack of several is for tensors.
        metadata = Metadata(sizes=metadata.sizes, memory=metadata.memory)
        given = replace(given, configs=())
    sources: list[tuple[str, Recipes | Metadata]] = [(_REQUESTED, given), (_METADATA, metadata)]
    metadata = _with_exported(source, graph, inputs, given, metadata, warn)
    sources.append((_EXPORTER, metadata))
    metadata, files = _with_configured(source, graph, inputs, given, metadata, warn)
    origins = dict(files)
    for origin, recipes in reversed(sources):
        origins |= dict.fromkeys(_named_fields(recipes), origin)
    detection, segmentation = given.detection, given.segmentation
    if detection and segmentation:
        raise CompileError(f"{source}: --detection or --segmentation, not both")
    if not detection and not segmentation:
        detection, segmentation = metadata.detection, metadata.segmentation
    named = detection or segmentation
    place, labels = str(source), given.labels or (named.labels if named else ())
    if not labels and metadata.labels:
        place, labels = f"{source}: metadata {LABELS}", metadata.labels
    preprocess = _preprocess(source, inputs, given, metadata)
    if given.detection is not None and preprocess is None:
        raise CompileError(f"{source}: --detection needs --preprocess: nothing places its boxes")
    if given.segmentation is not None and preprocess is None:
        raise CompileError(f"{source}: --segmentation needs --preprocess: nothing places its mask")
    if detection is not None:
        detection = _detection(place, source, graph, detection, labels)
        return RecipeRecords(preprocess, None, detection, None, None, origins)
    depth = None
    if segmentation is None and preprocess is not None and given.scores is None:
        segmentation = _recognised(graph, preprocess, len(labels))
        if segmentation is None and not labels:
            depth, files = configured_depth(
                given.configs, _forms(graph), lambda text: warn(f"{source}: {text}")
            )
            origins |= files
    if segmentation is not None:
        segmentation = _segmentation(source, graph, segmentation, labels)
        return RecipeRecords(preprocess, None, None, segmentation, None, origins)
    _name_lists(source, graph, warn)
    classification = None if depth else _classification(place, graph, labels, given.scores)
    return RecipeRecords(preprocess, classification, None, None, depth, origins)


def _named_fields(recipes: Recipes | Metadata) -> list[str]:
    """Return the fields of recipes that ``recipes`` has, labels of boxes and masks among them."""
    names = [name for name in _FIELDS if getattr(recipes, name)]
    named = recipes.detection or recipes.segmentation
    return [*names, "labels"] if named and named.labels else names


def _with_exported(
    source: Path,
    graph: Graph,
    inputs: Mapping[str, Array],
    requested: Recipes,
    metadata: Metadata,
    warn: Warn,
) -> Metadata:
    """Return ``metadata`` with what follows from an exporter's, where entries of ours say nothing."""
    written = metadata.preprocess, metadata.detection, metadata.segmentation, metadata.labels
    if metadata.exported is None or any(written) or requested.segmentation is not None:
        return metadata
    exported = replace(metadata.exported, labels=requested.labels or metadata.exported.labels)
    recipes = exported_recipes(
        exported, inputs, _forms(graph), requested.detection, lambda text: warn(f"{source}: {text}")
    )
    return replace(
        metadata,
        preprocess=recipes.preprocess,
        detection=recipes.detection,
        segmentation=recipes.segmentation,
        labels=recipes.labels,
    )


def _with_configured(
    source: Path,
    graph: Graph,
    inputs: Mapping[str, Array],
    requested: Recipes,
    metadata: Metadata,
    warn: Warn,
) -> tuple[Metadata, Mapping[str, str]]:
    """Return ``metadata`` with what follows from configuration files, where it and the user say nothing.

    The second result: the file that each field is of.
    """
    if not requested.configs:
        return metadata, {}
    recipes = configured_recipes(
        requested.configs,
        inputs,
        _forms(graph),
        requested.preprocess or metadata.preprocess,
        lambda text: warn(f"{source}: {text}"),
    )
    labels = metadata.labels
    detection, segmentation = metadata.detection, metadata.segmentation
    if not (detection or segmentation or requested.detection or requested.segmentation):
        detection, segmentation = recipes.detection, recipes.segmentation
        labels = labels or recipes.labels
    return (
        replace(
            metadata,
            preprocess=recipes.preprocess,
            detection=detection,
            segmentation=segmentation,
            labels=labels,
        ),
        recipes.origins,
    )


def _forms(graph: Graph) -> Forms:
    arrays = {name: graph.array(name) for name in graph.outputs}
    return {name: (array.dtype, array.shape) for name, array in arrays.items()}


def _preprocess(
    source: Path, inputs: Mapping[str, Array], given: Recipes, metadata: Metadata
) -> Preprocess | None:
    """Return the recipe, checked to make the model's one input."""
    preprocess = given.preprocess or metadata.preprocess
    if preprocess is None:
        return None
    if list(inputs.values()) != [Array(dtype="float32", shape=preprocess.shape)]:
        listed = (f"{name!r} is {a.dtype}{list(a.shape)}" for name, a in inputs.items())
        own = "" if given.preprocess else f"metadata {PREPROCESS} (--preprocess replaces it): "
        shapes = {layout: replace(preprocess, layout=layout).shape for layout in get_args(Layout)}
        suggested = (
            f', which layout = "{layout}" makes'
            for layout, shape in shapes.items()
            if list(inputs.values()) == [Array(dtype="float32", shape=shape)]
        )
        raise CompileError(
            f"{source}: {own}preprocessing makes one input float32{list(preprocess.shape)}; "
            + (", ".join(listed) or "the model has none")
            + next(suggested, "")
        )
    return preprocess


def _detection(
    place: str, source: Path, graph: Graph, detection: Detection, labels: tuple[str, ...]
) -> Detection:
    """Return ``detection`` with ``labels``, checked against the outputs."""
    fault = head_fault(detection, _forms(graph))
    if fault is not None:
        raise CompileError(f"{source}: {fault}")
    if len(labels) not in (0, detection.classes):
        raise CompileError(f"{place}: {len(labels)} labels for {detection.classes} classes")
    return replace(detection, labels=labels)


def _segmentation(
    source: Path, graph: Graph, segmentation: Segmentation, labels: tuple[str, ...]
) -> Segmentation:
    """Return ``segmentation`` with ``labels``, checked against the outputs."""
    named = replace(segmentation, labels=labels)
    fault = segmentation_fault(named, _forms(graph))
    if fault is not None:
        raise CompileError(f"{source}: {fault}")
    return named


def _recognised(graph: Graph, preprocess: Preprocess, labels: int) -> Segmentation | None:
    """Return the recipe of a network that clearly segments; None: it does not, or may do something else.

    Its one output is as large as its input and has a label for each plane, shares of all, or more planes
    than any picture; or it names the best of them.
    """
    if len(graph.outputs) != 1:
        return None
    (output,) = graph.outputs
    array, recipe = graph.array(output), Segmentation(output=output)
    area = None if array.is_loose else recipe.area(array.dtype, array.shape)
    if area is None:
        return None
    node = _maker(graph, output)
    is_as_large = (area.width, area.height) == preprocess.size
    if not area.classes:
        return recipe if is_as_large or node == Op.ArgMax else None
    is_clear = labels == area.classes or node == Op.Softmax or area.classes > _CHANNELS
    return recipe if is_as_large and is_clear else None


def _name_lists(source: Path, graph: Graph, warn: Warn) -> None:
    """Call ``warn`` with the recipe of a detector where outputs are lists and there is none."""
    keys = listed_head(_forms(graph))
    if keys is not None:
        warn(
            f"{source}: outputs are lists of boxes, scores and classes: with --preprocess, and with "
            f'--detection of nms = "none", [[heads]] {keys}, classes = their count, it detects'
        )


def _classification(
    place: str, graph: Graph, labels: tuple[str, ...], scores: Scores | None
) -> Classification | None:
    """Describe the scores where labels are given or the only output is a vector of scores.

    ``scores`` None takes probabilities where the output comes from a Softmax, logits elsewhere.
    """
    output = graph.outputs[0]
    array = graph.array(output)
    classes = array.shape[1] if len(array.shape) > 1 else 0
    is_vector = (
        len(graph.outputs) == 1
        and not array.is_loose
        and classes > 1
        and math.prod(array.shape) == classes
    )
    if labels and (not is_vector or len(labels) != classes):
        shapes = (f"{name!r} has shape {list(graph.array(name).shape)}" for name in graph.outputs)
        raise CompileError(
            f"{place}: {len(labels)} labels need one output of as many scores; {', '.join(shapes)}"
        )
    if not is_vector or array.dtype != "float32":
        return None
    is_softmax = _maker(graph, output) == Op.Softmax
    meaning: Scores = scores or ("probabilities" if is_softmax else "logits")
    return Classification(output=output, scores=meaning, labels=labels)


def _maker(graph: Graph, value: str) -> str | None:
    """Return the operator whose result ``value`` is, perhaps in another order or shape; None: an input."""
    while value in graph.makers:
        node = graph.nodes[graph.makers[value]]
        traits = traits_of(node.operator)
        into_or_out_of_blocks = traits.is_blocked and traits.elements == "moved"
        if not traits.permutes and not into_or_out_of_blocks:
            return node.operator
        value = node.inputs[0]
    return None
