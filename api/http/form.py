"""A multipart form as it arrives: small fields are collected, one file's bytes are handed on."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from jobs.errors import InvalidRequestError, TooLargeError

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks  # exists for type checkers alone

_MAX_PARTS: Final = 16  # our forms have at most four
# Of all that is not the file: fields, their names, headers, boundaries, and what comes before and after.
_MAX_OTHER_BYTES: Final = 64 * 1024
# A refused form is still read this many times its limit, so that the sender sees the answer.
_DRAINED_LIMITS: Final = 4
_MAX_FILENAME: Final = 255
_MAX_SHOWN: Final = 64  # characters of a name in an error


class TooManyPartsError(InvalidRequestError):
    """The form has too many parts."""

    code = "too_many_parts"


class NotMultipartError(InvalidRequestError):
    """The body must be multipart/form-data with a boundary."""

    code = "invalid_form"


@dataclass(slots=True)
class Form:
    """What has arrived so far.

    Attributes:
        fields: by name; the last one of a name counts.
        filename: of the file; None: none has begun.
    """

    fields: dict[str, str] = field(default_factory=dict)
    filename: str | None = None


async def read_form(request: Request, form: Form, *, file_field: str) -> AsyncIterator[bytes]:
    """The bytes of the file while they arrive; the rest is in `form`, whole once the iteration has ended.

    Raises:
        NotMultipartError: this is no such form, or it breaks off.
        InvalidRequestError: it has two files, or too many parts.
        TooLargeError: there is too much beside the file.
    """
    content_type, options = parse_options_header(request.headers.get("content-type"))
    boundary = options.get(b"boundary")
    if content_type != b"multipart/form-data" or not boundary:
        raise NotMultipartError
    reader = _Reader(form, file_field)
    chunks = request.stream()
    try:
        parser = MultipartParser(boundary, reader.callbacks())
        async for chunk in chunks:
            parser.write(chunk)
            reader.count(len(chunk))
            if reader.pieces:
                pieces, reader.pieces = reader.pieces, []
                for piece in pieces:
                    yield piece
        parser.finalize()
    except FormParserError:
        await _drain(chunks)
        raise NotMultipartError("The form cannot be read.") from None
    except (InvalidRequestError, TooLargeError):
        await _drain(chunks)
        raise
    if not reader.has_ended:
        raise NotMultipartError("The form breaks off.")


async def _drain(chunks: AsyncIterator[bytes]) -> None:
    """Read on for a while, so that a sender who is still sending sees the answer."""
    num_left = _DRAINED_LIMITS * _MAX_OTHER_BYTES
    async for chunk in chunks:
        num_left -= len(chunk)
        if num_left < 0:
            return


class _Reader:
    """Listens to the parser."""

    def __init__(self, form: Form, file_field: str) -> None:
        self.pieces: list[bytes] = []
        self.has_ended = False
        self._form = form
        self._file_field = file_field
        self._headers: dict[bytes, bytes] = {}
        self._header = (bytearray(), bytearray())
        self._name = ""
        self._is_file = False
        self._value = bytearray()
        self._num_parts = 0
        self._num_other_bytes = 0

    def count(self, num_bytes: int) -> None:
        """Count what the last piece of the body held beside the file.

        Raises:
            TooLargeError: there is too much of it.
        """
        self._num_other_bytes += num_bytes - sum(map(len, self.pieces))
        if self._num_other_bytes > _MAX_OTHER_BYTES:
            message = f"A form may have {_MAX_OTHER_BYTES} bytes at most beside its file."
            raise TooLargeError(message, param=self._shown_name())

    def callbacks(self) -> "MultipartCallbacks":
        """By the parser's names."""
        return {
            "on_part_begin": self._headers.clear,
            "on_header_field": lambda data, start, end: self._header[0].extend(data[start:end]),
            "on_header_value": lambda data, start, end: self._header[1].extend(data[start:end]),
            "on_header_end": self._end_header,
            "on_headers_finished": self._begin_part,
            "on_part_data": self._take,
            "on_part_end": self._end_part,
            "on_end": self._end,
        }

    def _end_header(self) -> None:
        name, value = self._header
        self._headers[bytes(name).lower()] = bytes(value)
        self._header = (bytearray(), bytearray())

    def _begin_part(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition"))
        self._name = options.get(b"name", b"").decode(errors="replace")
        self._is_file = self._name == self._file_field
        self._value.clear()
        self._num_parts += 1
        if self._num_parts > _MAX_PARTS:
            raise TooManyPartsError(f"A form may have {_MAX_PARTS} parts at most.", param=self._shown_name())
        if self._is_file:
            if self._form.filename is not None:
                raise InvalidRequestError("Only one file may be sent.", param=self._file_field)
            given = options.get(b"filename", b"").decode(errors="replace")
            self._form.filename = given.replace("\0", "\ufffd")[-_MAX_FILENAME:]

    def _take(self, data: bytes, start: int, end: int) -> None:
        if self._is_file:
            self.pieces.append(data[start:end])
            return
        self._value += data[start:end]

    def _end_part(self) -> None:
        if not self._is_file:
            self._form.fields[self._name] = self._value.decode(errors="replace")

    def _shown_name(self) -> str | None:
        shown = "".join(char if char.isprintable() else "?" for char in self._name[:_MAX_SHOWN])
        return shown or None

    def _end(self) -> None:
        self.has_ended = True
