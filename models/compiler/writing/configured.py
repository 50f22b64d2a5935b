"""What configuration files of a model mean for its graph: its input, labels, answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from models.compiler.writing.exported import length_of_scores
from models.compiler.writing.hub_config import HubConfig
from models.depth import Depth, depth_fault
from models.detection.heads import BoxesHead, Forms
from models.detection.recipe import Detection, head_fault
from models.graphs.inputs import Warn
from models.images.preprocess import PICTURE_RANK, Preprocess
from models.network.fields import Array
from models.segmentation import Segmentation, segmentation_fault
from models.sound.recipe import Sound, sound_fault

# Outputs of transformers' models.
_LOGITS, _BOXES, _DEPTH = "logits", "pred_boxes", "predicted_depth"


@dataclass(frozen=True)
class ConfiguredRecipes:
    """What follows; what does not is None or empty. ``origins``: the file that each field is of."""

    preprocess: Preprocess | None = None
    detection: Detection | None = None
    segmentation: Segmentation | None = None
    labels: tuple[str, ...] = ()
    origins: Mapping[str, str] = field(default_factory=dict)


def configured_preprocess(configs: Sequence[HubConfig]) -> Preprocess | None:
    """Return the recipe of the first of ``configs`` that has one."""
    return next((config.preprocess for config in configs if config.preprocess), None)


def configured_sound(
    configs: Sequence[HubConfig], inputs: Mapping[str, Array], warn: Warn
) -> tuple[Sound | None, Mapping[str, str]]:
    """Return the first recipe of ``configs`` by which a sound becomes ``inputs``, and the file of it.

    ``warn`` is called with a line where one is of another graph; that is left out.
    """
    for config in configs:
        if config.sound is None:
            continue
        fault = sound_fault(config.sound, inputs)
        if fault is None:
            return config.sound, {"sound": config.name}
        warn(f"{config.name}: {fault}; left out")
    return None, {}


def configured_depth(
    configs: Sequence[HubConfig], outputs: Forms, warn: Warn
) -> tuple[Depth | None, Mapping[str, str]]:
    """Return how ``outputs`` are depth where the first of ``configs`` with a task says so, and its file.

    ``warn`` is called with a line where no output is; that is left out.
    """
    config = next((config for config in configs if config.task is not None), None)
    if config is None or config.task != "depth":
        return None, {}
    for name in sorted(outputs, key=lambda name: name != _DEPTH):
        recipe = Depth(output=name)
        if depth_fault(recipe, outputs) is None:
            return recipe, {"depth": config.name}
    warn(f"{config.name}: no output is depth, float32[1, rows, columns]; left out")
    return None, {}


def configured_recipes(
    configs: Sequence[HubConfig],
    inputs: Mapping[str, Array],
    outputs: Forms,
    preprocess: Preprocess | None,
    warn: Warn,
) -> ConfiguredRecipes:
    """Return what ``configs`` mean for a graph of such inputs and outputs; the first that says it counts.

    ``preprocess``: what comes before any of theirs. ``warn`` is called with a line where they say what the
    graph is not; that is left out.
    """
    recipes = ConfiguredRecipes(preprocess)
    for config in configs:
        for reason in config.reasons:
            warn(f"{reason}; left out")
        if config.preprocess is not None and recipes.preprocess is None:
            recipes = _with_preprocess(recipes, config, inputs, warn)
        if config.labels and not recipes.labels:
            recipes = _with_answers(recipes, config, outputs, warn)
    if recipes.detection is not None and recipes.preprocess is None:
        warn("boxes need a picture whose place in the input is known: --preprocess; left out")
        origins = {name: file for name, file in recipes.origins.items() if name == "preprocess"}
        return replace(recipes, detection=None, labels=(), origins=origins)
    return recipes


def _with_preprocess(
    recipes: ConfiguredRecipes, config: HubConfig, inputs: Mapping[str, Array], warn: Warn
) -> ConfiguredRecipes:
    assert config.preprocess is not None
    preprocess = config.preprocess
    if config.keeps_aspect:
        preprocess = _shaped(preprocess, config.name, inputs, warn)
    shape = preprocess.shape
    if list(inputs.values()) != [Array(dtype="float32", shape=shape)]:
        listed = ", ".join(
            f"{name!r} {array.dtype}{list(array.shape)}" for name, array in inputs.items()
        )
        warn(
            f"{config.name}: pictures become float32{list(shape)}, the inputs are {listed}; left out"
        )
        return recipes
    origins = {**recipes.origins, "preprocess": config.name}
    return replace(recipes, preprocess=preprocess, origins=origins)


def _shaped(
    preprocess: Preprocess, name: str, inputs: Mapping[str, Array], warn: Warn
) -> Preprocess:
    """Return ``preprocess`` of the file ``name`` with the proportions of the one input, which are fixed.

    ``warn`` is called with what happens to pictures of others.
    """
    shapes = [array.shape for array in inputs.values()]
    if len(shapes) == 1 and len(shapes[0]) == PICTURE_RANK and min(shapes[0]) > 0:
        height, width = shapes[0][2:]
        preprocess = replace(preprocess, size=(width, height))
    width, height = preprocess.size
    warn(
        f"{name}: keep_aspect_ratio: here all pictures are stretched to {width} x {height}; for those of "
        "other proportions choose another --shape"
    )
    return preprocess


def _with_answers(
    recipes: ConfiguredRecipes, config: HubConfig, outputs: Forms, warn: Warn
) -> ConfiguredRecipes:
    """Return ``recipes`` with the labels of ``config``, and with what answers are by its task."""
    origins = {**recipes.origins, "labels": config.name}
    labelled = replace(recipes, labels=config.labels, origins=origins)
    if config.task == "detect":
        detection = _detection(config, outputs)
        if detection is not None:
            origins["detection"] = config.name
            return replace(labelled, detection=detection)
    elif config.task == "segment":
        segmentation = Segmentation(output=_LOGITS, labels=config.labels)
        if segmentation_fault(segmentation, outputs) is None:
            origins["segmentation"] = config.name
            return replace(labelled, segmentation=segmentation)
    elif length_of_scores(outputs) == len(config.labels):
        return labelled
    elif config.task is None:
        return recipes  # transformers names two classes of networks that have none
    listed = ", ".join(f"{name!r} {dtype}{list(shape)}" for name, (dtype, shape) in outputs.items())
    warn(f"{config.name}: {len(config.labels)} labels for outputs {listed}; left out")
    return recipes


def _detection(config: HubConfig, outputs: Forms) -> Detection | None:
    """Return the recipe of a network of the DETR family; None: its outputs are others.

    One score more than classes is that of no object; the scores are a softmax then.
    """
    classes = len(config.labels)
    _, shape = outputs.get(_LOGITS, ("", ()))
    has_none = bool(shape) and shape[-1] == classes + 1
    head = BoxesHead(
        kind="boxes",
        boxes=_BOXES,
        scores=_LOGITS,
        classes=classes,
        background="last" if has_none else None,
        activation="softmax" if has_none else "sigmoid",
        box="centre",
    )
    detection = Detection(heads=(head,), labels=config.labels, nms="none", multi_label=not has_none)
    return None if head_fault(detection, outputs) else detection
