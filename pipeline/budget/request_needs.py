"""How much memory requests to a model need, and how large the pool for all requests is.

Only calculated from manifests; docs/explanation/architecture/memory.md, "What requests may take".
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

from models.depth import depth_bytes
from models.detection.candidates import WORK_BYTES
from models.detection.masks import work_bytes as box_work_bytes
from models.images.placement import Size
from models.images.preprocess import Preprocess
from models.network.fields import Array
from models.packs.manifest import Manifest, Verb
from models.segmentation import WORK_BYTES as MASK_WORK_BYTES
from models.sound.decoding import wav_bytes
from models.sound.recipe import Sound
from models.sound.spectrogram import work_bytes

#: A request for at most so much never waits while there is free memory.
SMALL_BYTES = 128 << 10
# For these, other requests leave so much free, or of a small pool an eighth.
_KEPT_BYTES = 256 << 10
_KEPT_SHARE = 8
# Beside the largest usual request, one part in so many of a pool is left for others.
_OTHERS_SHARE = 8
#: Text and values on their way from a body into arrays, and pieces of an answer.
CODEC_BYTES = 512 << 10
#: The part of them for other text than values of known inputs: names, and a number that is cut in two.
LOOSE_BYTES = 16 << 10
#: Text and values of a short body.
SHORT_CODEC_BYTES = 64 << 10
#: Memory for decompressing a body: zlib's window, and a block.
INFLATE_BYTES = 64 << 10
#: Pieces of raw tensors on their way to a client.
RAW_ANSWER_BYTES = 128 << 10
# There is always room for a photograph like this: its size, bytes of its pixels, and bytes of its file.
_PICTURE = (640, 480)
_PICTURE_BYTES = 4 * 640 * 480
_FILE_BYTES = 128 << 10
# And for a sound of so many bytes a sample of the network's, as two channels of 16 bits and 44,100 Hz have
# at 16,000, with a second that shows that it goes on, a header, and the spare room of a buffer.
_SOUND_BYTES, _SOUND_HEADER_BYTES = 11.025 * 9 / 8, 64 << 10
# Where no setting says it, the pool is one part in so many of the budget, and at most so many bytes.
_SHARE = 8
_MOST_BYTES = 64 << 20
# Tensors of one request have room if they are at most one part in so many of the budget.
_TENSOR_SHARE = 4
_FLOAT_BYTES = 4
# Where models would not fit beside a usual pool, it shrinks to so many times the least.
_SHRUNK = 2


def kept_bytes(capacity_bytes: int) -> int:
    """Return the part of a pool that is kept for small requests."""
    return min(_KEPT_BYTES, capacity_bytes // _KEPT_SHARE)


def largest_request(capacity_bytes: int) -> int:
    """Return the most that one request may hold of a pool of ``capacity_bytes``."""
    return capacity_bytes - kept_bytes(capacity_bytes)


def capacity_for(n_bytes: int) -> int:
    """Return the smallest pool in which one request can hold ``n_bytes``."""
    return n_bytes + min(_KEPT_BYTES, n_bytes // (_KEPT_SHARE - 1) + 1)


def room_beside_others(n_bytes: int) -> int:
    """Return the room that requests need so that one gets ``n_bytes`` beside small ones."""
    return -(-n_bytes * _OTHERS_SHARE // (_OTHERS_SHARE - 1))


def tensor_bytes(ports: Iterable[Array]) -> int:
    """Return the bytes of tensors for ``ports``; loose ones, whose size is unknown, count as 0."""
    return sum([port.n_bytes for port in ports])


def infer_bytes(manifest: Manifest) -> int:
    """Return what one infer request holds from its body on: tensors, and buffers of the codec."""
    return with_long_text(short_infer_bytes(manifest))


def with_long_text(short_bytes: int) -> int:
    """Return what an infer request holds if its JSON is long; ``short_bytes``: if that is short."""
    return short_bytes - SHORT_CODEC_BYTES + CODEC_BYTES


def short_infer_bytes(manifest: Manifest) -> int:
    """Return what an infer request holds if its JSON is short, with or without raw tensors behind it."""
    return _tensors_bytes(manifest) + SHORT_CODEC_BYTES


def _tensors_bytes(manifest: Manifest) -> int:
    """Return the larger of inputs and outputs, since a request never holds both."""
    return max(tensor_bytes(manifest.inputs), tensor_bytes(manifest.outputs))


def boxes_room(room_bytes: int) -> int:
    """Return what the boxes of one answer may take where a request may hold ``room_bytes``."""
    return max(room_bytes - CODEC_BYTES, SHORT_CODEC_BYTES)


def picture_sweep_bytes(
    manifest: Manifest, verb: Verb, held_bytes: int = 0, size: Size = _PICTURE
) -> int:
    """Return what a request with a picture holds while it waits for its sweep, runs, and is answered.

    ``verb``: the kind of answer. ``held_bytes``: of the picture's tensor, which is freed before outputs are
    read. ``size``: of the upright picture.
    """
    return max(held_bytes, _taken_bytes(manifest, verb, size)) + CODEC_BYTES


def _taken_bytes(manifest: Manifest, verb: Verb, size: Size) -> int:
    """Return the bytes kept of the outputs: boxes by blocks, a mask at the network's size, or tensors.

    Of depth with what is made row by row for a picture of ``size``.
    """
    if verb == "detect":
        return WORK_BYTES + box_mask_bytes(manifest)
    if verb == "segment":
        return mask_bytes(manifest) + MASK_WORK_BYTES
    if verb == "depth":
        return map_bytes(manifest, size)
    if verb == "embed":
        return embedding_bytes(manifest)
    return tensor_bytes(manifest.outputs)


def box_mask_bytes(manifest: Manifest) -> int:
    """Return the bytes of prototypes of masks, and of computing the mask of a box; 0 without masks."""
    masks = None if manifest.detection is None else manifest.detection.masks
    if masks is None:
        return 0
    port = next(port for port in manifest.outputs if port.name == masks.output)
    return port.n_bytes + box_work_bytes(*port.shape[2:])


def mask_bytes(manifest: Manifest) -> int:
    """Return the bytes of a mask at the network's size; 0 for a model without masks."""
    recipe = manifest.segmentation
    if recipe is None:
        return 0
    port = next(port for port in manifest.outputs if port.name == recipe.output)
    area = recipe.area(port.dtype, port.shape)
    return 0 if area is None else area.height * area.width


def map_bytes(manifest: Manifest, size: Size) -> int:
    """Return what depth over a photograph of ``size`` takes; 0 for a model without depth."""
    recipe = manifest.depth
    if recipe is None:
        return 0
    port = next(port for port in manifest.outputs if port.name == recipe.output)
    area = recipe.area(port.dtype, port.shape)
    return 0 if area is None else depth_bytes(area, size)


def photograph_bytes(
    manifest: Manifest,
    recipe: Preprocess,
    verb: Verb,
    file_bytes: int,
    size: Size,
    decoding_bytes: int,
) -> int:
    """Return the most that a request with a picture of ``size`` holds at any time, upright or rotated.

    ``recipe``: how the model of ``manifest`` takes it. ``verb``: the kind of answer. ``file_bytes``: of its
    body. ``decoding_bytes``: of all pixels and of their decoder, in addition to that.
    """
    ways = size, (size[1], size[0])
    return max(
        file_bytes + decoding_bytes + max(map(recipe.work_bytes, ways)),
        *(
            picture_sweep_bytes(manifest, verb, max(map(recipe.held_bytes, ways)), turned)
            for turned in ways
        ),
    )


def picture_bytes(manifest: Manifest) -> int:
    """Return the room that requests need so that one with a photograph and small ones of others fit.

    0: the model takes no photographs.
    """
    recipe, verb = manifest.preprocess, manifest.verb
    if recipe is None or verb is None:
        return 0
    return room_beside_others(
        photograph_bytes(manifest, recipe, verb, _FILE_BYTES, _PICTURE, _PICTURE_BYTES)
    )


def text_bytes(manifest: Manifest) -> int:
    """Return what a request with a usual text holds, which fills the network; 0: the model takes none."""
    text = manifest.text
    return 0 if text is None else infer_bytes(manifest) + text.usual_work_bytes


def sound_bytes(manifest: Manifest, recipe: Sound, file_bytes: int, decode_bytes: int) -> int:
    """Return the most that a request with a sound holds until it has its spectrogram, and while it waits.

    ``file_bytes``: of its body, ``decode_bytes``: of its samples and what decodes them.
    """
    spectrogram_bytes = recipe.waveform_bytes + work_bytes(recipe) + recipe.tensor_bytes
    return max(file_bytes + decode_bytes, spectrogram_bytes, infer_bytes(manifest))


def usual_sound_bytes(manifest: Manifest) -> int:
    """Return what a request with a usual sound holds, which fills the network; 0: the model takes none."""
    recipe = manifest.sound
    if recipe is None:
        return 0
    file_bytes = math.ceil(_SOUND_BYTES * (recipe.n_samples + recipe.rate)) + _SOUND_HEADER_BYTES
    return sound_bytes(manifest, recipe, file_bytes, wav_bytes(recipe))


def embedding_bytes(manifest: Manifest) -> int:
    """Return what making one vector of the outputs takes, in addition to inputs; 0: there is no recipe."""
    embedding = manifest.embedding
    if embedding is None:
        return 0
    port = next(port for port in manifest.outputs if port.name == embedding.output)
    return _FLOAT_BYTES * (math.prod(port.shape) + embedding.width(port.shape))


class Need(NamedTuple):
    """The bytes that requests to one model take: with tensors, and with a photograph (0: it takes none).

    Of a model that takes texts or sounds, ``infer_bytes`` is enough for a usual one.
    """

    infer_bytes: int
    picture_bytes: int

    @classmethod
    def of(cls, manifest: Manifest) -> Self:
        """Return the needs of requests to the model of ``manifest``."""
        tensors = infer_bytes(manifest), text_bytes(manifest), usual_sound_bytes(manifest)
        return cls(max(tensors), picture_bytes(manifest))

    @property
    def least_bytes(self) -> int:
        """What the request takes for which there is always room: with a photograph, if the model takes any.

        Tensors of a detector may take many times as much.
        """
        return self.picture_bytes or self.infer_bytes

    @property
    def full_bytes(self) -> int:
        """The smallest pool in which all kinds of requests to the model are answered."""
        return capacity_for(max(self.picture_bytes, self.infer_bytes))

    @property
    def tight_bytes(self) -> int:
        """The smallest pool in which one kind of requests to the model is answered."""
        return capacity_for(self.least_bytes)


def pool_bytes(budget_bytes: int, needs: Sequence[Need], model_bytes: int = 0) -> int:
    """Return the size of the pool where no setting says it: an eighth of the budget, or what is needed.

    Where models that take ``model_bytes`` do not fit beside that, but do beside twice what is needed, the
    pool is what they leave: in a smaller one, usual photographs would have to be decoded smaller.
    """
    usual, least = _usual_bytes(budget_bytes, needs), _SHRUNK * _least_pool(needs)
    remaining_bytes = budget_bytes - model_bytes
    return remaining_bytes if least <= remaining_bytes < usual else usual


def _least_pool(needs: Sequence[Need]) -> int:
    return capacity_for(max((need.least_bytes for need in needs), default=CODEC_BYTES))


def _usual_bytes(budget_bytes: int, needs: Sequence[Need]) -> int:
    """Return an eighth of the budget, or what is needed.

    Tensors of a model have room if the budget is at least four times as large. In a smaller one they get
    what exceeds three times as much, so that models never get less from a larger budget.
    """
    share = min(budget_bytes // _SHARE, _MOST_BYTES)
    # Each model counts by itself: one whose tensors are too large for the budget takes nothing from others.
    tensors = {capacity_for(need.infer_bytes) for need in needs}
    tensor_pools = (min(each, budget_bytes - (_TENSOR_SHARE - 1) * each) for each in tensors)
    return max(share, _least_pool(needs), *tensor_pools)


class Smallest(NamedTuple):
    """The smallest budgets in which models and requests to them fit.

    ``bare_bytes``: all are served, with photographs where they take any. ``full_bytes``: with tensors, too,
    which may take many times as much.
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

    ``least_pool``: the least memory for requests.
    """

    def is_enough(budget: int) -> bool:
        pool = pool_bytes(budget, needs, model_bytes)
        return pool >= least_pool and budget - pool >= model_bytes

    low, high = model_bytes, 1 << max(model_bytes, 1).bit_length()
    while not is_enough(high):
        high *= 2
    # A larger budget is enough wherever a smaller one is, so bisection finds the smallest.
    while low < high:
        middle = (low + high) // 2
        if is_enough(middle):
            high = middle
        else:
            low = middle + 1
    return low
