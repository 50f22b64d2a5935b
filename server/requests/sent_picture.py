"""The picture that a request sends: all of its body, or the one file of a form. It lies in memory.

The exchange holds what has come of the body, which is no less.
"""

from collections.abc import AsyncIterator
from io import BytesIO

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from server.errors import InvalidRequestError
from server.requests.exchange import Exchange


async def sent_picture(exchange: Exchange, content_type: str) -> BytesIO:
    """Return the picture that the client of ``exchange`` sends, from its first byte on.

    Raises:
        InvalidRequestError: an empty body, or a form without a file. DisconnectedError: the client went
            away while sending. Otherwise as Exchange.receive.
    """
    if content_type.lower().startswith("multipart/form-data"):
        file = await _file_of_form(exchange, content_type)
    else:
        file = BytesIO()
        async for part in _parts(exchange):
            file.write(part)
    if not file.tell():
        raise InvalidRequestError("the body is empty; send an image")
    file.seek(0)
    return file


async def _parts(exchange: Exchange) -> AsyncIterator[bytes]:
    while not exchange.is_read:
        yield await exchange.receive()


async def _file_of_form(exchange: Exchange, content_type: str) -> BytesIO:
    """Return the file of a form; raises as ``sent_picture``."""
    form = _Form()
    try:
        boundary = parse_options_header(content_type)[1].get(b"boundary")
        if boundary is None:
            raise _no_form("Missing boundary in multipart.")
        parser = MultipartParser(
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
        async for part in _parts(exchange):
            parser.write(part)
        parser.finalize()
    except FormParserError as exc:
        raise _no_form("Invalid multipart data.") from exc
    if form.file is None:
        raise InvalidRequestError("the form has no file; send the image as one")
    return form.file


def _no_form(why: str) -> InvalidRequestError:
    return InvalidRequestError(f"the form is not multipart/form-data: {why}")


class _Form:
    """What the parts of a form are: ``file`` is there once it has ended. Fields are passed over."""

    def __init__(self) -> None:
        self.file: BytesIO | None = None
        self._file: BytesIO | None = None
        self._is_file = False
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
        """A part begins: what it is was said by now.

        Raises:
            InvalidRequestError: it has no name, or is a second file.
        """
        _, options = parse_options_header(self._disposition)
        self._disposition = b""
        if b"name" not in options:
            raise _no_form('The Content-Disposition header field "name" must be provided.')
        self._is_file = b"filename" in options
        if self._is_file:
            if self._file is not None:
                raise _no_form("Too many files. Maximum number of files is 1.")
            self._file = BytesIO()

    def data(self, data: bytes, start: int, end: int) -> None:
        if self._is_file and self._file is not None:
            self._file.write(data[start:end])

    def end(self) -> None:
        if self._is_file:
            self.file = self._file
