"""Requests with a sound: its file comes in, and a spectrogram goes to the model.

A request holds the memory of its body, and of decoding it, before it is read on; what headers say of
lengths is not trusted. The body is all of the sound's file.
"""

import time
from io import BytesIO
from typing import Any, NamedTuple

from models.packs.manifest import Verb
from models.sound.decoding import decoding_bytes, file_limit, waveform
from models.sound.recipe import Sound
from models.sound.spectrogram import Samples
from models.sound.wav import SoundError
from pipeline.budget.request_needs import picture_sweep_bytes, sound_bytes
from server.codec.framing import check_not_encoded
from server.codec.messages import ModelRequest
from server.errors import InvalidRequestError
from server.protocol.http_request import HttpRequest
from server.protocol.serving import Inference
from server.service import Service

#: The header of an answer to a sound of which the model heard the first part: how many seconds that is.
CUT = b"x-sound-truncated"
_OF_SOUND, _FORM = "audio/", "multipart/"
# A buffer that grows is up to one part in so many larger than what is in it.
_SPARE = 8


class HeardSound(NamedTuple):
    """What the network hears: ``seconds`` of the sound, which has more where it ``is_cut``."""

    tensor: Samples
    seconds: float
    is_cut: bool

    @property
    def fields(self) -> dict[str, Any]:
        """What an answer says of its sound."""
        return {"seconds": round(self.seconds, 3), "truncated": self.is_cut}


def accepts_sound(request: HttpRequest, model: Inference) -> bool:
    """Return whether ``model`` takes sounds.

    Raises:
        InvalidRequestError: it takes none, and the body is one.
    """
    if model.manifest.sound is not None:
        return True
    if (request.header("content-type") or "").lower().startswith(_OF_SOUND):
        raise InvalidRequestError(
            f"model {model.name!r} takes no sounds: it was compiled without preprocessor_config.json of "
            "WhisperFeatureExtractor"
        )
    return False


async def sound_question(
    request: HttpRequest, model: Inference, verb: Verb
) -> tuple[ModelRequest, HeardSound]:
    """Return the sound of a request as input of ``model``, and what is heard of it.

    ``verb``: the kind of answer; a header of it says where the sound is cut.

    Raises:
        InvalidRequestError: the body is no sound that is read. TooLargeError: there is less memory for
            requests than it takes. EncodedError: it is compressed. DisconnectedError: the client went away.
    """
    manifest, exchange, service = model.manifest, request.exchange, model.service
    recipe = manifest.sound
    assert recipe is not None
    with model.reading():
        try:
            file = await _received(request, model, recipe)
            started = time.perf_counter()
            heard = await service.aside.do(_heard, service, recipe, file)
        except SoundError as exc:
            raise InvalidRequestError(f"the sound: {exc}") from None
        seconds = time.perf_counter() - started
        await exchange.hold(picture_sweep_bytes(manifest, verb, heard.tensor.nbytes))
    service.metrics.requests.preprocess(model.name, seconds)
    if heard.is_cut:
        request.client.more_headers.append((CUT, b"%g" % heard.seconds))
    inputs = {port.name: heard.tensor for port in manifest.required_inputs}
    return ModelRequest(inputs, (), decoding_seconds=seconds), heard


async def _received(request: HttpRequest, model: Inference, recipe: Sound) -> BytesIO:
    """Return the file, when all of it has come and the request holds the memory for what follows."""
    exchange, manifest = request.exchange, model.manifest
    check_not_encoded(request.headers)
    if (request.header("content-type") or "").lower().startswith(_FORM):
        raise InvalidRequestError("the body is a form; send the file of the sound as the body")
    exchange.may_be_hastened = True
    exchange.arm()
    head = await exchange.beginning()
    if not head:
        raise InvalidRequestError("the body is empty; send a sound")
    decode_bytes = decoding_bytes(head, recipe)
    limit = file_limit(head, recipe) or exchange.body_limit.n_bytes
    file = BytesIO()
    stored_bytes = file.write(head)
    while not exchange.is_read:
        # Without a length, all that one request may have: one that holds some must not wait for more.
        n_bytes = min(max(exchange.declared_bytes, exchange.received_bytes), limit)
        needed = sound_bytes(manifest, recipe, n_bytes + n_bytes // _SPARE, decode_bytes)
        if not exchange.declared_bytes:
            needed = max(needed, exchange.lease.memory.room_bytes)
        await exchange.hold(needed)
        chunk = await exchange.part(reads_ahead=True)
        stored_bytes += file.write(chunk[: max(limit - stored_bytes, 0)])
    n_bytes = stored_bytes + stored_bytes // _SPARE
    await exchange.hold(sound_bytes(manifest, recipe, n_bytes, decode_bytes))
    return file


def _heard(service: Service, recipe: Sound, file: BytesIO) -> HeardSound:
    """Return what the network hears of ``file``, which is closed; blocks; raises SoundError."""
    try:
        samples = waveform(file, recipe)
        file.close()
        seconds = samples.count / recipe.rate
        return HeardSound(samples.log_mel(), seconds, samples.is_cut)
    finally:
        service.trimming.look()  # here, since samples have just been freed
