"""The tensors that a run gets of its engine by name: gathered beside its tokens, kept as `.npy` files."""

import io
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from math import prod
from typing import Final
from uuid import UUID

import numpy as np
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session, sessionmaker

from jobs import files
from jobs.database import transaction
from jobs.engines import tensor_rows
from jobs.engines.tensor_rows import NewOutput
from jobs.engines.tensors import ELEMENT_BYTES, described
from jobs.errors import EngineError, LongbatchError
from jobs.files.storage import PART_BYTES, RowStore
from jobs.starting import Claim
from jobs.transitions import Lease
from worker.engine.deltas import OutputDelta

# Kept in memory up to here, then in a file without a name.
_IN_MEMORY_BYTES: Final = 2**20
# Parts that one transaction stores.
_PARTS_AT_ONCE: Final = 8
# NumPy has no BF16: its bits, as integers.
_DTYPES: Final[Mapping[str, str]] = {
    "BOOL": "|b1",
    "UINT8": "|u1",
    "UINT16": "<u2",
    "UINT32": "<u4",
    "UINT64": "<u8",
    "INT8": "|i1",
    "INT16": "<i2",
    "INT32": "<i4",
    "INT64": "<i8",
    "FP16": "<f2",
    "BF16": "<u2",
    "FP32": "<f4",
    "FP64": "<f8",
}


class OutputsTooLargeError(EngineError):
    """The tensors that the job asks for are larger than this server keeps."""

    code = "engine_outputs_too_large"


class OutputsUnreadableError(EngineError):
    """The engine sent a tensor that the job asks for in parts that do not fit together."""

    code = "engine_outputs_unreadable"


class OutputsNotStoredError(LongbatchError):
    """The tensors that the job asks for could not be stored."""

    code = "internal_error"
    retryable = True


class _Gathered:
    """One tensor as its parts come: joined along the last dimension but one, or along the only one."""

    def __init__(self, first: OutputDelta) -> None:
        self.datatype = first.datatype
        self.shape = first.shape
        self.num_bytes = len(first.data)
        self.data = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES)  # noqa: SIM115  # closed by `close`
        self.data.write(first.data)

    def add(self, part: OutputDelta) -> None:
        """Append a part.

        Raises:
            OutputsUnreadableError: it does not fit.
        """
        rank = len(self.shape)
        axis = max(rank - 2, 0)
        own, new = (shape[:axis] + shape[axis + 1 :] for shape in (self.shape, part.shape))
        fits = rank == len(part.shape) > 0 and own == new and prod(own[:axis]) == 1
        if not fits or part.datatype != self.datatype:
            message = (
                f"The engine sent {part.name!r} in parts that do not fit together:"
                f" {described(self.datatype, self.shape)} and {described(part.datatype, part.shape)}."
            )
            raise OutputsUnreadableError(message)
        joined = self.shape[axis] + part.shape[axis]
        self.shape = (*self.shape[:axis], joined, *self.shape[axis + 1 :])
        self.data.write(part.data)
        self.num_bytes += len(part.data)

    def header(self) -> bytes:
        """Write what precedes the elements in an `.npy` file."""
        written = io.BytesIO()
        fields = {"descr": _DTYPES[self.datatype], "fortran_order": False, "shape": self.shape}
        np.lib.format.write_array_header_1_0(written, fields)  # type: ignore[no-untyped-call]  # as NumPy has it
        return written.getvalue()

    def parts(self) -> Iterator[bytes]:
        """Read the file in parts of the size in which files are stored."""
        self.data.seek(0)
        part = self.header()
        while new := self.data.read(PART_BYTES - len(part)):
            yield part + new
            part = b""
        if part:
            yield part


class EngineOutputs:
    """The tensors of one run that its job asks for by name. Not thread-safe.

    Attributes:
        error: why they cannot be kept; None: they can so far.
    """

    def __init__(self, names: Sequence[str], *, max_bytes: int) -> None:
        """Set up without any.

        Args:
            names: of the tensors.
            max_bytes: of all of them together.
        """
        self.error: EngineError | None = None
        self._names = names
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._found: dict[str, _Gathered] = {}

    def add(self, part: OutputDelta) -> bool:
        """Take what a response holds of a tensor.

        Returns:
            False if that shows for the first time that they cannot be kept.
        """
        if self.error is not None or part.name not in self._names or _is_placeholder(part):
            return True
        try:
            self._add(part)
        except EngineError as error:
            self.error = error
            self.close()
            return False
        return True

    def _add(self, part: OutputDelta) -> None:
        self._num_bytes += len(part.data)
        if self._num_bytes > self._max_bytes:
            message = f"engine_outputs: the engine sends more of them than is kept, {self._max_bytes} bytes."
            raise OutputsTooLargeError(message)
        size = ELEMENT_BYTES.get(part.datatype)
        if size is None or prod(part.shape) * size != len(part.data):
            shown = described(part.datatype, part.shape)
            raise OutputsUnreadableError(
                f"The engine sent {part.name!r}, {shown}, in {len(part.data)} bytes."
            )
        if part.name in self._found:
            self._found[part.name].add(part)
        else:
            self._found[part.name] = _Gathered(part)

    def close(self) -> None:
        """Forget them."""
        for each in self._found.values():
            each.data.close()
        self._found = {}

    def described(self) -> list[NewOutput]:
        """List those that came."""
        return [
            NewOutput(name, each.datatype, each.shape, len(each.header()) + each.num_bytes)
            for name, each in self._found.items()
        ]

    @property
    def missing(self) -> list[str]:
        """Names of those that did not come."""
        return [name for name in self._names if name not in self._found]

    def parts(self, name: str) -> Iterator[bytes]:
        """Read the file of one that came, in parts."""
        return self._found[name].parts()


class OutputFiles:
    """The files of tensors, in the database: only the API and service workers need reach another store."""

    def __init__(self, sessions: sessionmaker[Session]) -> None:
        self._sessions = sessions

    def keep(self, outputs: EngineOutputs, claim: Claim) -> None:
        """Store the tensors as hidden files of this run, unless its lease is lost. It blocks.

        Killed on the way, it leaves files that nobody sees, and that go as abandoned uploads do.
        """
        lease, new, missing = claim.lease, outputs.described(), outputs.missing
        with transaction(self._sessions) as session:
            begun = tensor_rows.begin_files(session, lease.job_id, lease.lease_id, new, missing=missing)
        for name, file_id in (begun or {}).items():
            self._store(outputs.parts(name), file_id=file_id, tenant_id=claim.job.tenant_id)

    def discard(self, lease: Lease) -> None:
        """Remove the files of a run that did not complete its job, if the database can be reached."""
        with suppress(SQLAlchemyError), transaction(self._sessions) as session:
            tensor_rows.discard(session, lease.job_id, lease.lease_id)

    def _store(self, parts: Iterator[bytes], *, file_id: UUID, tenant_id: UUID) -> None:
        store, start = RowStore(), 0
        while some := list(islice(parts, _PARTS_AT_ONCE)):
            with transaction(self._sessions) as session:
                for raw in some:
                    files.add_part(session, file_id, store.put(raw), start=start, tenant_id=tenant_id)
                    start += len(raw)


def _is_placeholder(part: OutputDelta) -> bool:
    """Return True for the single zero that TensorRT-LLM sends in place of a table that it does not have."""
    return len(part.shape) > 1 and prod(part.shape) == 1 and not any(part.data)
