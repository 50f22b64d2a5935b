"""Requests with a photograph: it comes in, and a tensor goes to the model.

The photograph is all of a body, or the one file of a form, and lies in memory.
"""

import time
from collections.abc import Callable, Collection
from functools import partial
from io import SEEK_END, BytesIO
from typing import TYPE_CHECKING

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from models.images.picture_rows import PictureTensor
from models.images.placement import Size
from models.images.preprocess import Preprocess
from models.packs.manifest import Verb
from pipeline.budget.request_needs import photograph_bytes, picture_sweep_bytes
from server.codec.framing import check_not_encoded
from server.codec.messages import ModelRequest
from server.errors import InvalidRequestError
from server.protocol.answers import Answer, answered
from server.protocol.http_request import HttpRequest
from server.protocol.serving import Inference
from server.requests.drawn import Preview
from server.requests.pictures import OpenedPicture, PictureLimits
from server.service import Service

if TYPE_CHECKING:
    from PIL.Image import Image

#: The media type of a mask, of depth and of a drawing.
PNG = "image/png"
#: The header of an answer to a picture that had no room at its own size, and was decoded at this one.
DECODED = b"x-image-decoded"
# Fields of a form are limited to so much, since no reservation counts them.
_FIELD_BYTES = 256
# What a verb is in words, and what a model lacks that cannot do it.
_DOES: dict[Verb, tuple[str, str]] = {
    "classify": ("classify images", "--preprocess, or its output is not a vector of scores"),
    "detect": ("detect objects", "--detection"),
    "segment": ("segment images", "--segmentation"),
    "depth": ("estimate depth", "a config.json whose architecture is for depth"),
    "embed": ("make vectors of images", "--preprocess"),
    "infer": ("take images", "--preprocess"),
}
_INSTEAD = {
    "classify": "classifies them",
    "detect": "detects objects",
    "segment": "segments them",
    "depth": "estimates their depth",
    "embed": "makes vectors of them",
}


async def begin_picture(asked: HttpRequest, wanted: Collection[str] = ()) -> "SentPicture":
    """Return the beginning of a picture, before the request holds memory; ``wanted``: as of SentPicture.

    Raises:
        As ``read_picture``.
    """
    sent = SentPicture(asked.header("content-type") or "", wanted)
    sent.add(await asked.exchange.beginning())
    return sent


async def read_picture(
    asked: HttpRequest,
    model: Inference,
    verb: Verb,
    begun: "SentPicture | None" = None,
    preview: Preview | None = None,
) -> tuple[ModelRequest, Size]:
    """Return the image of the request as input of ``model``, and the size of the upright photograph.

    Only the first few bytes are read freely; before more is read, the request holds the memory for body,
    pixels and tensor.

    ``verb``: the kind of answer. ``begun``: what has come of the image already. ``preview``: keeps it for a
    drawing, for which the request holds memory, too.

    Raises:
        InvalidRequestError: the model cannot give that answer, or the body is not a picture.
        TooLargeError: there is less memory for requests than it takes to decode.
        EncodedError: the body is compressed; pictures are by themselves.
        DisconnectedError: the client went away while sending.
    """
    service, exchange, manifest = asked.service, asked.exchange, model.manifest
    check_not_encoded(asked.headers)
    recipe = manifest.preprocess
    if recipe is None or verb not in ("infer", manifest.verb):
        raise _unable(model.name, verb, manifest.verb)
    exchange.may_be_hastened = True
    exchange.arm()  # decoding waits for threads
    sent = begun or await begin_picture(asked)

    def needed(file_bytes: int, size: Size, decoding_bytes: int) -> int:
        n_bytes = photograph_bytes(manifest, recipe, verb, file_bytes, size, decoding_bytes)
        return n_bytes if preview is None else n_bytes + preview.n_bytes(size)

    opened = await _received(asked, sent, needed, recipe.sees_all)
    await exchange.hold(opened.needed_bytes)
    started = time.perf_counter()
    tensor, size, decoded = await service.aside.do(_made, service, recipe, opened, preview)
    if decoded != size:
        asked.client.more_headers.append((DECODED, b"%dx%d" % decoded))
    seconds = time.perf_counter() - started
    service.metrics.requests.preprocess(model.name, seconds)
    preview_bytes = 0 if preview is None else preview.n_bytes(size)
    await exchange.hold(picture_sweep_bytes(manifest, verb, tensor.n_bytes, size) + preview_bytes)
    inputs = {manifest.inputs[0].name: tensor}
    return ModelRequest(inputs, (), decoding_seconds=seconds), size


def preview_of(request: HttpRequest, draws: bool) -> Preview | None:
    """Return what keeps the photograph of a request that ``draws``."""
    return Preview(request.exchange.lease.memory.room_bytes) if draws else None


async def drawn_answer(
    request: HttpRequest, preview: Preview, draw: "Callable[[Image], Image]"
) -> Answer:
    """Return the photograph in ``preview`` with what ``draw`` draws on it, as PNG."""
    return answered(await request.service.aside.do(preview.drawn, draw), PNG)


def _unable(name: str, verb: Verb, own: Verb | None) -> InvalidRequestError:
    """Return the error that model ``name``, whose ``own`` verb is another, cannot do what ``verb`` says."""
    does, missing = _DOES[verb]
    instead = None if verb == "detect" else _INSTEAD.get(own or "")
    why = f"it {instead}, use :{own}" if instead else f"it was compiled without {missing}"
    return InvalidRequestError(f"model {name!r} does not {does}: {why}")


async def _received(
    asked: HttpRequest,
    sent: "SentPicture",
    needed: Callable[[int, Size, int], int],
    may_become: Callable[[Size], bool],
) -> OpenedPicture:
    """Return the picture when all of it has come.

    ``needed``: the memory for a picture of so many bytes, this size, and bytes of its decoding.
    ``may_become``: whether a picture that has no room may be decoded at this size instead. The size is
    mostly in the picture's first bytes, the length of the body in the request's header. As long as either
    is unknown, the request holds all that one may have; then it gives back the rest.
    """
    exchange, aside = asked.exchange, asked.service.aside
    most = exchange.lease.memory.room_bytes
    opened: OpenedPicture | None = None
    seen = 0

    def limits(n_bytes: int) -> PictureLimits:
        pixels = asked.service.settings.max_image_pixels
        return PictureLimits(pixels, most, partial(needed, n_bytes), may_become)

    while not exchange.is_read:
        received, declared = exchange.received_bytes, exchange.declared_bytes
        if opened is None and declared and received >= 2 * seen:
            opened = await aside.do(OpenedPicture.begun, sent.file, limits(declared))
            seen = received
        need = most if opened is None else opened.needed_bytes
        await exchange.hold(max(need, received, declared))
        sent.add(await exchange.part(reads_ahead=True))
    file = sent.finish()
    if opened is None:
        opened = await aside.do(OpenedPicture, file, limits(exchange.received_bytes))
    return opened


def _made(
    service: Service, recipe: Preprocess, opened: OpenedPicture, preview: Preview | None
) -> tuple[PictureTensor, Size, Size]:
    """Return the picture as a network's input, its size, and that at which it was decoded.

    Blocks; raises as decode.
    """
    try:
        photograph = opened.decode()
        tensor, sizes = recipe.tensor(photograph.image), (photograph.size, photograph.image.size)
        if preview is not None:
            preview.keep(photograph.image, photograph.size)
        del photograph
        return tensor, *sizes
    finally:
        service.trimming.look()  # here, since the pixels have just been freed


class SentPicture:
    """The picture in a body of ``content_type``, as far as it has come.

    ``wanted``: fields of a form that are kept; others are passed over.

    Raises:
        InvalidRequestError: the body is to be a form, and its header does not say how.
    """

    def __init__(self, content_type: str, wanted: Collection[str] = ()) -> None:
        #: The bytes that have come. Its position may be anywhere; new bytes go to its end.
        self.file = BytesIO()
        is_form = content_type.lower().startswith("multipart/form-data")
        self._form = _Form(self.file, wanted) if is_form else None
        self._parser = None if self._form is None else _parser(self._form, content_type)

    @property
    def fields(self) -> dict[str, str]:
        """The wanted fields as far as they have come; of a field that is there twice, the last."""
        fields = {} if self._form is None else self._form.fields
        return {name: value.decode("utf-8", "replace") for name, value in fields.items()}

    def add(self, part: bytes) -> None:
        """Take the next ``part`` of the body.

        Raises:
            InvalidRequestError: the body is no form, or a field is too long.
        """
        self.file.seek(0, SEEK_END)
        if self._parser is None:
            self.file.write(part)
            return
        try:
            self._parser.write(part)
        except FormParserError as exc:
            raise _no_form("Invalid multipart data.") from exc

    def finish(self) -> BytesIO:
        """Return the picture: the body has ended.

        Raises:
            InvalidRequestError: it is empty, or a form without a file.
        """
        if self._parser is not None:
            try:
                self._parser.finalize()
            except FormParserError as exc:
                raise _no_form("Invalid multipart data.") from exc
        if self._form is not None and not self._form.is_whole:
            raise InvalidRequestError("the form has no file; send the image as one")
        if not self.file.seek(0, SEEK_END):
            raise InvalidRequestError("the body is empty; send an image")
        return self.file


def _parser(form: "_Form", content_type: str) -> MultipartParser:
    boundary = parse_options_header(content_type)[1].get(b"boundary")
    if boundary is None:
        raise _no_form("Missing boundary in multipart.")
    try:
        return MultipartParser(
            boundary,
            {
                "on_part_data": form.data,
                "on_part_end": form.end,
                "on_header_field": form.name,
                "on_header_value": form.value,
                "on_header_end": form.header,
                "on_headers_finished": form.begin,
            },
        )
    except FormParserError as exc:
        raise _no_form("Invalid multipart data.") from exc


def _no_form(why: str) -> InvalidRequestError:
    return InvalidRequestError(f"the form is not multipart/form-data: {why}")


class _Form:
    """Takes the parts of a form: writes one to ``file``, and keeps the ``wanted`` others as ``fields``."""

    def __init__(self, file: BytesIO, wanted: Collection[str]) -> None:
        self._file = file
        self.fields: dict[str, bytes] = {}
        self._wanted = wanted
        self._field: str | None = None
        self.is_whole = False
        self._has_begun = self._is_file = False
        self._name, self._value, self._disposition = b"", b"", b""

    def name(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def header(self) -> None:
        if self._name.lower() == b"content-disposition":
            self._disposition = self._value
        self._name, self._value = b"", b""

    def begin(self) -> None:
        """Begin a part, whose headers have come.

        Raises:
            InvalidRequestError: it has no name, or is a second file.
        """
        _, options = parse_options_header(self._disposition)
        self._disposition = b""
        if b"name" not in options:
            raise _no_form('The Content-Disposition header field "name" must be provided.')
        self._is_file = b"filename" in options
        name = options[b"name"].decode("utf-8", "replace")
        self._field = name if name in self._wanted and not self._is_file else None
        if self._field is not None:
            self.fields[self._field] = b""
        if self._is_file:
            if self._has_begun:
                raise InvalidRequestError("the form has several files; one is taken: the image")
            self._has_begun = True

    def data(self, data: bytes, start: int, end: int) -> None:
        if self._is_file:
            self._file.write(data[start:end])
        elif self._field is not None:
            value = self.fields[self._field] = self.fields[self._field] + data[start:end]
            if len(value) > _FIELD_BYTES:
                raise InvalidRequestError(
                    f"the field {self._field!r} of the form is over {_FIELD_BYTES} bytes"
                )

    def end(self) -> None:
        self.is_whole = self.is_whole or self._is_file
