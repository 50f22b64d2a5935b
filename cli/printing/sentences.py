"""What packs, networks and budgets are, in words and units, for people."""

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from models.sizes import format_least, format_size
from server.errors import few

if TYPE_CHECKING:  # `up` imports this, where memory is little
    from models.detection.recipe import Detection
    from models.embedding import Embedding
    from models.images.preprocess import Preprocess
    from models.network.fields import Array
    from models.packs.manifest import Manifest
    from models.packs.names import Store
    from models.packs.pack import Pack
    from models.packs.records.pieces import ResidentPiece
    from models.packs.records.ports import DesignedLayer, DesignedMemory, Port, SourceSizes
    from models.packs.target import Target
    from models.segmentation import Segmentation
    from models.sound.recipe import Sound
    from models.text.recipe import TextInput

_RESIZED = {
    "stretch": "stretched to {size}",
    "crop": "cut to the middle and resized to {size}",
    "letterbox": "fitted into {size} with borders of {pad:g}",
}
_SUPPRESSIONS = {"greedy": "greedy", "diou": "DIoU", "none": "no"}


def command(*words: object) -> str:
    """Return a command of ours as a shell takes it."""
    return shlex.join(["layerstream", *map(str, words)])


def typed(n_bytes: int) -> str:
    """Return a size rounded up, as an option takes it: 8.2MiB."""
    return format_least(n_bytes).replace(" ", "")


def one_shape(shape: Mapping[str, Any]) -> str:
    """Return what a shape of several costs: [1, 3, 320, 320]: ..."""
    return (
        f"{shape['shape']} ({shape['file']}): of its own {format_size(shape['file_bytes'])} on the disk, "
        f"{format_size(shape['memory_bytes'])} of memory at least, "
        f"{counted(shape['sessions'], 'session')} to open at the start"
    )


def counted(count: int, noun: str) -> str:
    """Return how many of ``noun`` there are: 1 span, 1,008 spans."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def network_size(
    n_bytes: int, layers: int, largest_bytes: int, parameters: int | None = None, *, counts: str
) -> str:
    """Return how large a network is; sizes in bytes. ``counts``: what counts as a layer."""
    numbers = "" if parameters is None else f" ({counted(parameters, 'parameter')})"
    # Of an ONNX graph many layers have no weights, so not: so much in so many layers.
    return (
        f"{format_size(n_bytes)}{numbers}, {format_size(largest_bytes)} in the largest of "
        f"{counted(layers, 'layer')} {counts}"
    )


def stored_as(store: "Store") -> str:
    """Return how weights are stored in the file of a pack that expands them."""
    return "with integers of the source as int8" if store == "fp32" else f"as {store}"


def stored(manifest: "Manifest") -> str:
    """Return how weights lie in the file: what was asked for, bytes there, and what has stayed as it is."""
    spans = [span for span in manifest.spans if span.stored is not None]
    in_file = manifest.files["weights.bin"].n_bytes
    parts = [part for span in spans if span.stored is not None for part in span.stored.parts]
    kept = sum(part.length for part in parts if part.encoding == "bytes")
    whole = sum(span.length for span in spans)
    return (
        f"{stored_as(manifest.store)}: {format_size(in_file)} in the file for "
        f"{format_size(whole)} in memory, of which {format_size(kept)} lie there as they are"
    )


def shares(budget_bytes: int, model_bytes: int, request_bytes: int) -> str:
    """Return how a budget is divided between models and requests."""
    free = budget_bytes - model_bytes - request_bytes
    return (
        f"Of {format_size(budget_bytes)} models take {format_size(model_bytes)} and requests in "
        f"flight {format_size(request_bytes)}; {format_size(free)} are free."
    )


def tensor(port: "Array") -> str:
    """Return dtype and shape: float32 [1, 3, 224, 224]."""
    return f"{port.dtype} {list(port.shape)}"


def given(port: "Port") -> str:
    """Return the shape and dtype of an input, in words."""
    optional = "" if port.default is None else ", may be left out"
    return f"{port.name}: {tensor(port)}{optional}"


def picture(recipe: "Preprocess") -> str:
    """Return how a photograph becomes the input."""
    width, height = recipe.size
    size = f"{width} x {height} pixels"
    colour = {"GRAY": "grey"}.get(recipe.color, recipe.color)
    return ", ".join(
        (
            _resizing(recipe).format(size=size, pad=recipe.pad_value),
            f"{recipe.filter} filter",
            *([colour, "channels last"] if recipe.layout == "NHWC" else [colour]),
            *_arithmetic(recipe),
        )
    )


def _resizing(recipe: "Preprocess") -> str:
    if recipe.resize_size is None:
        return _RESIZED[recipe.resize]
    sides = " x ".join(map(str, recipe.resize_size))
    side = "on the shorter side" if len(recipe.resize_size) == 1 else "pixels"
    return f"resized to {sides} {side}, {{size}} of its middle"


def _arithmetic(recipe: "Preprocess") -> list[str]:
    words = []
    if any(recipe.mean):
        words.append(f"minus {_numbers(recipe.mean)}")
    if recipe.scale != 1:
        inverse = 1 / recipe.scale if recipe.scale else 0.0
        by = round(inverse)
        divides = by > 0 and abs(inverse - by) < 1e-6 * by
        words.append(f"divided by {by}" if divides else f"times {recipe.scale:g}")
    if any(number != 1 for number in recipe.std):
        words.append(f"divided by {_numbers(recipe.std)}")
    return words or ["from 0 to 255"]


def _numbers(values: tuple[float, ...]) -> str:
    different = values if len(set(values)) > 1 else values[:1]
    return " ".join(f"{value:g}" for value in different)


def detector(detection: "Detection") -> str:
    """Return what a detector finds and how boxes are chosen."""
    heads, kind = len(detection.heads), _SUPPRESSIONS[detection.nms]
    overlapping = "" if kind == "no" else f" by more than {detection.iou_threshold:g}"
    return (
        f"{detection.classes} classes from {heads} head{'s' * (heads != 1)}; scores from "
        f"{detection.score_threshold:g}; {kind} suppression of boxes that overlap{overlapping}"
    )


def segmenter(segmentation: "Segmentation") -> str:
    """Return the outputs of a network that segments, in words."""
    if segmentation.threshold is not None:
        return f"{segmentation.output}: what is above {segmentation.threshold:g}"
    return f"{segmentation.output}: a class for each pixel"


def texts(text: "TextInput") -> str:
    """Return how texts become tokens, in words."""
    before = f", {text.prompt!r} before each" if text.prompt else ""
    return f"up to {text.max_tokens:,} tokens of {text.vocabulary:,}{before}"


def sounds(sound: "Sound") -> str:
    """Return what becomes of sounds, in words."""
    return (
        f"{sound.seconds:g} s at {sound.rate:,} Hz, log-mel spectrogram of {sound.bins} bins, "
        f"{sound.frames:,} frames"
    )


def vectors(manifest: "Manifest", embedding: "Embedding") -> str:
    """Return how the outputs become a vector, in words."""
    width = embedding.width(
        next(port.shape for port in manifest.outputs if port.name == embedding.output)
    )
    pooled = "" if embedding.pooling == "none" else f"{embedding.pooling} of "
    others = f", or {', '.join(map(str, embedding.matryoshka))}" if embedding.matryoshka else ""
    length = ", of length 1" if embedding.normalise else ""
    return f"{width}{others} numbers, {pooled}{embedding.output}{length}"


def machine(target: "Target") -> str:
    """Return what a pack was compiled for."""
    if target.capability is not None:
        major, minor = divmod(target.capability, 10)
        kind = f"GPUs of compute capability {major}.{minor} ({target.isa})"
    elif target.block > 1:
        kind = f"CPUs with {target.isa} (blocks of {target.block} channels)"
    else:
        kind = f"any CPU (plain layouts; optimised for {target.isa})"
    return f"{kind}; compiled with ONNX Runtime {target.onnxruntime}"


def operators_on_elements(
    all_pieces: int, pieces: int, kernels: str | None, missing: str | None, not_shared: str | None
) -> str:
    """Return what computes ``pieces`` of operators on elements: native kernels, or why there are none.

    ``not_shared``: why they do not run on ONNX Runtime's threads.
    """
    count = f"{pieces:,} of {counted(all_pieces, 'piece')}"
    if kernels is not None and not_shared is None:
        return f"{count}, by native kernels for {kernels} on ONNX Runtime's threads"
    if kernels is not None:
        return f"{count}, by native kernels for {kernels} where one thread computes: {not_shared}"
    return f"would be {count}; now in ONNX Runtime, for want of native kernels: {missing}"


def bottlenecks(items: Sequence[Mapping[str, Any]]) -> str:
    """Return which bottlenecks can run some of their channels at a time; a plan chooses."""
    sizes = sorted({size for item in items for size in item["groups"]})
    channels = [item["channels"] for item in items]
    widest = f"{min(channels)} to {max(channels)}" if min(channels) < max(channels) else channels[0]
    return (
        f"{len(items)} of {widest} inner channels can run {', '.join(map(str, sizes[:-1]))}"
        f"{' or ' if len(sizes) > 1 else ''}{sizes[-1]} of them at a time"
    )


def unrolled(layer: Mapping[str, Any]) -> str:
    """Return which layer's input, unrolled, is a large part of the smallest budget."""
    return (
        f"the input of {layer['layer']} ({layer['operator']}), for which a kernel needs "
        f"{format_size(layer['bytes'])} of scratch"
    )


def operators_alone(pieces: int) -> str:
    """Return how many elementwise operators, a piece each, ONNX Runtime runs by themselves."""
    return f"{counted(pieces, 'elementwise operator')} (SiLU, GELU or sum), run by ONNX Runtime"


def source(sizes: "SourceSizes") -> str:
    """Return what the tool that a network comes from counts."""
    return (
        f"{sizes.tool} counts {sizes.layers} layers, {format_size(sizes.weight_bytes)} of weights, "
        f"{format_size(sizes.largest_layer_bytes)} in the largest layer"
    )


#: Bytes of a number by precision, as memory that was designed is shown.
DESIGNED = {"int8": 1, "fp32": 4}


def designed(memory: "DesignedMemory") -> str:
    """Return what a network was designed for, and what it holds at most."""
    peak = memory.peak
    sizes = ", ".join(
        f"{format_size(size * peak.numbers)} of {format_size(size * memory.budget)} as {name}"
        for name, size in DESIGNED.items()
    )
    return f"{sizes}: {peak.name} ({peak.equation})"


def designed_layer(layer: "DesignedLayer") -> tuple[str, ...]:
    """Return the cells of a layer: its name, numbers, bytes by precision, the equation."""
    sizes = (format_size(size * layer.numbers) for size in DESIGNED.values())
    return (layer.name, f"{layer.numbers:,}", *sizes, layer.equation)


def resident(piece: "ResidentPiece") -> str:
    """Return what is not streamed and why, in one line."""
    operators = few(list(dict.fromkeys(piece.operators)))
    why = few(piece.reasons, "; ")
    nodes, size = counted(len(piece.nodes), "node"), format_size(piece.weight_bytes)
    return f"resident piece: {nodes} ({operators}), {size}, because: {why}"


def less_for_pictures(summary: Mapping[str, Any]) -> str:
    """Return from which budget photographs are answered and tensors are not, if that is a smaller one."""
    pictures = summary["pictures_budget_bytes"]
    if pictures >= summary["smallest_budget_bytes"]:
        return ""
    return f"; from {typed(pictures)} for photographs, not for tensors"


def in_all(summary: Mapping[str, Any]) -> str:
    """Return the least memory for all of a process; nothing for a GPU's pack, whose driver decides."""
    n_bytes = summary["smallest_memory_bytes"]
    return "" if n_bytes is None else f"; with the process itself from {typed(n_bytes)} (--memory)"


def serves_from(summary: Mapping[str, Any]) -> str:
    """Return from which budget and memory on a pack is served."""
    min_budget = typed(summary["smallest_budget_bytes"])
    return f"serves from a budget of {min_budget} up{less_for_pictures(summary)}{in_all(summary)}"


def takes(costs: Sequence[Mapping[str, Any]]) -> str:
    """Return how long requests take in the smallest budget beside all memory, and from which on less."""
    first, *larger = costs
    more = "".join(f"; {_times(cost)} from {typed(cost['budget_bytes'])} up" for cost in larger)
    estimated = " (estimated)" if first["estimated"] else ""
    return f"about {_times(first)} the time with all its memory{more}{estimated}"


def _times(cost: Mapping[str, Any]) -> str:
    return f"{cost['times']:.1f} x"


def serving(pack: "Pack", budget_bytes: int) -> str:
    """Return the command that serves ``pack`` alone in its smallest budget."""
    # REPOSITORY/NAME/VERSION; as the user wrote it, where that says all of these
    folder = pack.folder
    if len(folder.parts) < len(("NAME", "VERSION")) or ".." in folder.parts:
        folder = folder.resolve()
    named = ("--repository", folder.parent.parent, "--models", folder.parent.name)
    return command("serve", *named, "--budget", typed(budget_bytes), *_device(pack))


def profiling(pack: "Pack") -> str:
    """Return the command that measures ``pack`` here."""
    path = pack.path if pack.shape_index else pack.folder
    return command("profile", path, *_device(pack))


def _device(pack: "Pack") -> tuple[str, ...]:
    return () if pack.manifest.target.capability is None else ("--device", "cuda")
