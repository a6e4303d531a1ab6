"""Multipart forms as they arrive: collects small fields and streams the bytes of one file, or of several."""

from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from jobs.errors import InvalidRequestError, TooLargeError

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks  # exists for type checkers alone

_MAX_PARTS: Final = 16  # our forms have at most four
# For everything but the file: fields, their names, headers, boundaries, preamble and epilogue.
_MAX_OTHER_BYTES: Final = 64 * 1024
_BYTES_A_FILE: Final = 1024  # more of them for each further file: its headers and its boundary
# A refused form is still read up to this many times its limit, so that the sender sees the response.
_DRAINED_LIMITS: Final = 4
# Of files that the caller leaves, so that those after them arrive: as much as a refused request may send.
_MAX_PASSED_OVER: Final = 64 * 2**20
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
    """The part of a form that has arrived so far.

    Attributes:
        fields: by name; the last one of a name wins.
        filename: of the file, or of the last one that has begun; None until a file begins.
    """

    fields: dict[str, str] = field(default_factory=dict)
    filename: str | None = None


async def read_form(request: Request, form: Form, *, file_field: str) -> AsyncIterator[bytes]:
    """Yield the file's bytes as they arrive, and collect the other fields in `form`.

    `form` is complete once the iteration ends.

    Raises:
        NotMultipartError: the body is not a multipart form, or it is cut short.
        InvalidRequestError: the form has two files, or too many parts.
        TooLargeError: everything but the file is too large.
    """
    async for piece in _read(request, _Reader(form, file_field)):
        if piece.content:
            yield piece.content


@dataclass(frozen=True, slots=True)
class FormFile:
    """One of the files of a form.

    Attributes:
        filename: empty: a field of the form without a file.
        pieces: its bytes as they arrive; what is not taken is passed over.
    """

    filename: str
    pieces: AsyncIterator[bytes]


async def read_files(
    request: Request, form: Form, *, file_field: str, max_files: int
) -> AsyncGenerator[FormFile, None]:
    """Yield the form's files as they begin, and collect the other fields in `form`.

    Fields before a file are in `form` when it begins. Raises as `read_form` does, with `max_files` files.

    Raises:
        TooLargeError: what the caller left of its files exceeds a limit.
    """
    num_left = _MAX_PASSED_OVER
    found = _read(request, _Reader(form, file_field, max_files))
    first = await anext(found, None)
    while first is not None:
        following = _Following()
        pieces = _pieces_of(first, found, following)
        yield FormFile(first.filename, pieces)
        async for piece in pieces:  # what the caller has left
            num_left -= len(piece)
            if num_left < 0:
                message = f"Refused files, and files without a name, have over {_MAX_PASSED_OVER} bytes."
                raise TooLargeError(message, param=file_field)
        first = following.piece


class _Piece(NamedTuple):
    """Some bytes of a file; the first piece of each is empty."""

    number: int
    filename: str
    content: bytes


@dataclass(slots=True)
class _Following:
    """The first piece of the next file, once the one before has ended."""

    piece: _Piece | None = None


async def _pieces_of(
    first: _Piece, found: AsyncIterator[_Piece], following: _Following
) -> AsyncGenerator[bytes, None]:
    async for piece in found:
        if piece.number != first.number:
            following.piece = piece
            return
        yield piece.content


async def _read(request: Request, reader: "_Reader") -> AsyncGenerator[_Piece, None]:
    content_type, options = parse_options_header(request.headers.get("content-type"))
    boundary = options.get(b"boundary")
    if content_type != b"multipart/form-data" or not boundary:
        raise NotMultipartError
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
        raise NotMultipartError("The form is malformed.") from None
    except (InvalidRequestError, TooLargeError):
        await _drain(chunks)
        raise
    if not reader.has_ended:
        raise NotMultipartError("The form is cut short.")


async def _drain(chunks: AsyncIterator[bytes]) -> None:
    """Read on up to a limit, so that a caller still sending sees the response."""
    num_left = _DRAINED_LIMITS * _MAX_OTHER_BYTES
    async for chunk in chunks:
        num_left -= len(chunk)
        if num_left < 0:
            return


class _Reader:
    """Callbacks of the parser and the state they fill."""

    def __init__(self, form: Form, file_field: str, max_files: int = 1) -> None:
        self.pieces: list[_Piece] = []
        self.has_ended = False
        self._form = form
        self._file_field = file_field
        self._headers: dict[bytes, bytes] = {}
        self._header = (bytearray(), bytearray())
        self._name = ""
        self._is_file = False
        self._value = bytearray()
        self._max_files = max_files
        self._num_files = 0
        self._num_parts = 0
        self._num_other_bytes = 0

    def count(self, num_bytes: int) -> None:
        """Count the bytes of the last chunk that are not the file's.

        Raises:
            TooLargeError: they exceed the limit.
        """
        self._num_other_bytes += num_bytes - sum(len(each.content) for each in self.pieces)
        limit = _MAX_OTHER_BYTES + _BYTES_A_FILE * (self._max_files - 1)
        if self._num_other_bytes > limit:
            files = "file" if self._max_files == 1 else "files"
            message = f"A form may have at most {limit} bytes besides its {files}."
            raise TooLargeError(message, param=self._shown_name())

    def callbacks(self) -> "MultipartCallbacks":
        """Return the callbacks under the parser's names."""
        return {
            "on_part_begin": self._headers.clear,
            "on_header_field": lambda data, start, end: self._header[0].extend(data[start:end]),
            "on_header_value": lambda data, start, end: self._header[1].extend(data[start:end]),
            "on_header_end": self._end_header,
            "on_headers_finished": self._begin_part,
            "on_part_data": self._add_data,
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
        if self._is_file:
            self._begin_file(options.get(b"filename", b"").decode(errors="replace"))
        max_parts = _MAX_PARTS + self._max_files - 1
        if self._num_parts > max_parts:
            raise TooManyPartsError(f"A form may have at most {max_parts} parts.", param=self._shown_name())

    def _begin_file(self, given: str) -> None:
        self._num_files += 1
        if self._num_files > self._max_files:
            most = "only one file" if self._max_files == 1 else f"at most {self._max_files} files"
            raise InvalidRequestError(f"A form may have {most}.", param=self._file_field)
        self._form.filename = given.replace("\0", "\ufffd")[-_MAX_FILENAME:]
        self._add_piece(b"")

    def _add_piece(self, content: bytes) -> None:
        self.pieces.append(_Piece(self._num_files, self._form.filename or "", content))

    def _add_data(self, data: bytes, start: int, end: int) -> None:
        if self._is_file:
            self._add_piece(data[start:end])
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
