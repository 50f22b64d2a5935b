"""The picture that a request sends: all of its body, or the one file of a form. It lies in memory."""

from collections.abc import Collection
from io import SEEK_END, BytesIO

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from server.errors import InvalidRequestError

# What fields say is short, and no reservation counts it.
_FIELD_BYTES = 256


class SentPicture:
    """The picture in a body of ``content_type``, as far as it has come.

    ``wanted``: fields of a form that are kept; others are passed over.

    Raises:
        InvalidRequestError: the body is to be a form, and its header does not say how.
    """

    def __init__(self, content_type: str, wanted: Collection[str] = ()) -> None:
        is_form = content_type.lower().startswith("multipart/form-data")
        self._form = _Form(wanted) if is_form else None
        self._parser = None if self._form is None else _parser(self._form, content_type)
        self._file = BytesIO()

    @property
    def file(self) -> BytesIO:
        """What has come of it, at any position; what is added goes to its end."""
        begun = self._file if self._form is None else self._form.begun
        return BytesIO() if begun is None else begun

    @property
    def fields(self) -> dict[str, str]:
        """What has come of the fields that are wanted; of one that is there twice, the last."""
        kept = {} if self._form is None else self._form.fields
        return {name: value.decode("utf-8", "replace") for name, value in kept.items()}

    def add(self, part: bytes) -> None:
        """Take the next ``part`` of the body.

        Raises:
            InvalidRequestError: no form begins like this, or a field is longer than any is.
        """
        self.file.seek(0, SEEK_END)
        if self._parser is None:
            self._file.write(part)
            return
        try:
            self._parser.write(part)
        except FormParserError as exc:
            raise _no_form("Invalid multipart data.") from exc

    def finish(self) -> BytesIO:
        """Return it: the body has ended.

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
        file = self.file
        file.seek(0, SEEK_END)
        if not file.tell():
            raise InvalidRequestError("the body is empty; send an image")
        return file


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
    """What the parts of a form are: the file, once it has ``begun``, and the ``fields`` that are wanted."""

    def __init__(self, wanted: Collection[str]) -> None:
        self.begun: BytesIO | None = None
        self.is_whole = False
        self.fields: dict[str, bytes] = {}
        self._wanted = wanted
        self._is_file = False
        self._field: str | None = None
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
        name = options[b"name"].decode("utf-8", "replace")
        self._field = name if name in self._wanted and not self._is_file else None
        if self._field is not None:
            self.fields[self._field] = b""
        if self._is_file:
            if self.begun is not None:
                raise _no_form("Too many files. Maximum number of files is 1.")
            self.begun = BytesIO()

    def data(self, data: bytes, start: int, end: int) -> None:
        if self._is_file and self.begun is not None:
            self.begun.write(data[start:end])
        elif self._field is not None:
            value = self.fields[self._field] = self.fields[self._field] + data[start:end]
            if len(value) > _FIELD_BYTES:
                raise InvalidRequestError(
                    f"the field {self._field!r} of the form is over {_FIELD_BYTES} bytes"
                )

    def end(self) -> None:
        self.is_whole = self.is_whole or self._is_file
