"""How much memory requests to a model need, and how large the pool for all requests is.

Pure figures of manifests; docs/explanation/architecture/request-memory.md, "What requests may take".
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

from models.detection.candidates import WORK_BYTES
from models.images.placement import Size
from models.images.preprocess import Preprocess
from models.network.fields import Array
from models.packs.manifest import Manifest, Verb
from models.segmentation import WORK_BYTES as MASK_WORK_BYTES

#: What takes no more may take it from all that is free, and at once.
SMALL_BYTES = 128 << 10
# Kept for that: others leave so much free, or an eighth of a small pool.
_KEPT_BYTES = 256 << 10
_KEPT_SHARE = 8
# Of a pool, so much is left for others beside the largest usual request: one in so many.
_OTHERS_SHARE = 8
#: Text and values of a body between its arrival and its arrays, and pieces of an answer.
CODEC_BYTES = 512 << 10
#: Of them, what a body holds besides values of known inputs: names, and a number that is cut in two.
LOOSE_BYTES = 16 << 10
#: Text and values of a short body.
SHORT_CODEC_BYTES = 64 << 10
#: What opens a compressed body: zlib's window, and a block.
INFLATE_BYTES = 64 << 10
#: Pieces of raw tensors on their way to a client.
RAW_ANSWER_BYTES = 128 << 10
# The least photograph for which there is room: its size, bytes a pixel, and its file.
_PICTURE = (640, 480)
_PIXEL_BYTES = 4
_FILE_BYTES = 128 << 10
#: Of the budget, and at most so much, where the settings do not say.
_SHARE = 8
# Of the budget: what tensors of one request may be.
_TENSOR_SHARE = 4
_MOST_BYTES = 64 << 20
# Of what is needed, where models would not fit beside more.
_SHRUNK = 2


def kept_bytes(capacity_bytes: int) -> int:
    """Return what is kept of a pool for what takes next to nothing."""
    return min(_KEPT_BYTES, capacity_bytes // _KEPT_SHARE)


def capacity_for(n_bytes: int) -> int:
    """Return the smallest pool in which one request can hold ``n_bytes``."""
    return n_bytes + min(_KEPT_BYTES, n_bytes // (_KEPT_SHARE - 1) + 1)


def room_beside_others(n_bytes: int) -> int:
    """Return what requests must have room for so that one has ``n_bytes`` beside small ones of others."""
    return -(-n_bytes * _OTHERS_SHARE // (_OTHERS_SHARE - 1))


def tensor_bytes(ports: Iterable[Array]) -> int:
    """Return the bytes of tensors for ``ports``; loose ones are unknown and count nothing."""
    return sum([port.n_bytes for port in ports])


def infer_bytes(manifest: Manifest) -> int:
    """Return what one infer request holds from its body on: tensors, and what decodes and writes them."""
    return with_long_text(short_infer_bytes(manifest))


def with_long_text(short_bytes: int) -> int:
    """Return what an infer request holds that holds ``short_bytes`` where its JSON is short."""
    return short_bytes - SHORT_CODEC_BYTES + CODEC_BYTES


def short_infer_bytes(manifest: Manifest) -> int:
    """Return what an infer request holds whose JSON is short: all of its body, or raw tensors follow."""
    return _tensors_bytes(manifest) + SHORT_CODEC_BYTES


def _tensors_bytes(manifest: Manifest) -> int:
    """Inputs until the sweep has ended, then outputs: never both."""
    return max(tensor_bytes(manifest.inputs), tensor_bytes(manifest.outputs))


def answer_bytes(n_bytes: int, is_raw: bool = False) -> int:
    """Return what an answer takes until it is sent, of which arrays or other values take ``n_bytes``.

    ``is_raw``: arrays go as they are, and neither become text nor are compressed.
    """
    if n_bytes <= SHORT_CODEC_BYTES:
        return n_bytes + SHORT_CODEC_BYTES
    return n_bytes + (RAW_ANSWER_BYTES if is_raw else CODEC_BYTES)


def boxes_room(room_bytes: int) -> int:
    """Return what the boxes of one answer may take where a request may hold ``room_bytes``."""
    return max(room_bytes - CODEC_BYTES, SHORT_CODEC_BYTES)


def picture_sweep_bytes(manifest: Manifest, verb: Verb, held_bytes: int = 0) -> int:
    """Return what a request with a picture holds while it waits for its sweep, runs, and is answered.

    ``verb``: what is made of it. ``held_bytes``: of the picture's tensor, which is gone when outputs are
    looked at.
    """
    return max(held_bytes, _taken_bytes(manifest, verb)) + CODEC_BYTES


def _taken_bytes(manifest: Manifest, verb: Verb) -> int:
    """Return what is taken of the outputs: boxes by blocks, a mask at the network's size, or tensors."""
    if verb == "detect":
        return WORK_BYTES
    if verb == "segment":
        return mask_bytes(manifest) + MASK_WORK_BYTES
    return tensor_bytes(manifest.outputs)


def mask_bytes(manifest: Manifest) -> int:
    """Return what a mask takes as the network makes it; 0 of a model that makes none."""
    recipe = manifest.segmentation
    if recipe is None:
        return 0
    port = next(port for port in manifest.outputs if port.name == recipe.output)
    area = recipe.area(port.dtype, port.shape)
    return 0 if area is None else area.height * area.width


def photograph_bytes(
    manifest: Manifest,
    recipe: Preprocess,
    verb: Verb,
    file_bytes: int,
    size: Size,
    pixel_bytes: int,
) -> int:
    """Return the most that a request with a picture of ``size`` holds, upright or lying, at any time.

    ``recipe``: how the model of ``manifest`` takes it. ``verb``: what is made of it. ``file_bytes``: of its
    body. ``pixel_bytes``: of a pixel while it is decoded.
    """
    ways = size, (size[1], size[0])
    made = file_bytes + size[0] * size[1] * pixel_bytes + max(map(recipe.work_bytes, ways))
    return max(made, picture_sweep_bytes(manifest, verb, max(map(recipe.held_bytes, ways))))


def picture_bytes(manifest: Manifest) -> int:
    """Return what requests have room for so that one with a photograph is answered; 0: none is.

    Beside it others have small ones answered.
    """
    recipe, verb = manifest.preprocess, manifest.verb
    if recipe is None or verb is None:
        return 0
    return room_beside_others(
        photograph_bytes(manifest, recipe, verb, _FILE_BYTES, _PICTURE, _PIXEL_BYTES)
    )


class Need(NamedTuple):
    """What requests to one model take: to be answered from tensors; from a photograph, or 0."""

    infer_bytes: int
    picture_bytes: int

    @classmethod
    def of(cls, manifest: Manifest) -> Self:
        """Return what requests to the model of ``manifest`` take."""
        return cls(infer_bytes(manifest), picture_bytes(manifest))

    @property
    def least_bytes(self) -> int:
        """What a request takes for which there is always room: a photograph, if the model takes any.

        Tensors of a detector may take many times as much.
        """
        return self.picture_bytes or self.infer_bytes

    @property
    def full_bytes(self) -> int:
        """The smallest pool in which the model can be asked everything."""
        return capacity_for(max(self.picture_bytes, self.infer_bytes))

    @property
    def tight_bytes(self) -> int:
        """The smallest pool in which the model can be asked anything."""
        return capacity_for(self.least_bytes)


def pool_bytes(budget_bytes: int, needs: Sequence[Need], model_bytes: int = 0) -> int:
    """Return the size of the pool where no setting does: an eighth of the budget, or what is needed.

    Where models that take ``model_bytes`` would not fit beside that, but do beside twice what is needed, it
    is what they leave: with less, usual photographs would have to be decoded smaller.
    """
    usual, least = _usual_bytes(budget_bytes, needs), _SHRUNK * _least_pool(needs)
    left = budget_bytes - model_bytes
    return left if least <= left < usual else usual


def _least_pool(needs: Sequence[Need]) -> int:
    return capacity_for(max((need.least_bytes for need in needs), default=CODEC_BYTES))


def _usual_bytes(budget_bytes: int, needs: Sequence[Need]) -> int:
    """Return an eighth, or what is needed.

    Tensors of any model have room from four times as large a budget on. Below, what is left over beside
    three times as much is theirs, so that more for requests is never less for models.
    """
    share = min(budget_bytes // _SHARE, _MOST_BYTES)
    # Of each model by itself: one whose tensors are too large for the budget takes nothing from others.
    tensors = {capacity_for(need.infer_bytes) for need in needs}
    left_over = (min(each, budget_bytes - (_TENSOR_SHARE - 1) * each) for each in tensors)
    return max(share, _least_pool(needs), *left_over)


class Smallest(NamedTuple):
    """The smallest budgets in which models and requests to them fit.

    ``bare_bytes``: all are served, and answer photographs where they take any. ``full_bytes``: they
    answer tensors, too, which may take many times as much.
    """

    bare_bytes: int
    full_bytes: int


def smallest_budgets(model_bytes: int, needs: Sequence[Need]) -> Smallest:
    """Return the smallest budgets for models that take ``model_bytes`` at least."""
    full_pool = max((need.full_bytes for need in needs), default=0)
    return Smallest(
        smallest_budget(model_bytes, needs), smallest_budget(model_bytes, needs, full_pool)
    )


def smallest_budget(model_bytes: int, needs: Sequence[Need], least_pool: int = 0) -> int:
    """Return the smallest budget in which models that take ``model_bytes`` and their requests fit.

    ``least_pool``: requests have so much there.
    """

    def is_enough(budget: int) -> bool:
        pool = pool_bytes(budget, needs, model_bytes)
        return pool >= least_pool and budget - pool >= model_bytes

    low, high = model_bytes, 1 << max(model_bytes, 1).bit_length()
    while not is_enough(high):
        high *= 2
    while (
        low < high
    ):  # what is left for models grows with the budget, and what requests have beside them
        middle = (low + high) // 2
        if is_enough(middle):
            high = middle
        else:
            low = middle + 1
    return low
