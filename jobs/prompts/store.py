"""Stored prompts: one row per tenant and content, with its token ids."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import InitVar, dataclass, field
from hashlib import sha256
from typing import Any, Final, Protocol
from uuid import UUID

import zstandard
from sqlalchemy import (
    LargeBinary,
    Select,
    delete,
    exists,
    or_,
    select,
    type_coerce,
    update,
)
from sqlalchemy.orm import Session

from jobs.database import statements
from jobs.database.sealed_columns import plain_length, sealer_in
from jobs.database.statements import Query, Statement, insert_set
from jobs.ids import uuid7
from jobs.models import Job, JobTensors, PromptText, StoredResponse, Summary
from jobs.models.prompt import BODY, TOKEN_IDS
from jobs.prompts import messages
from jobs.prompts.prefixes import NO_DIGESTS, Digests, keyed, num_kept_bytes
from jobs.prompts.tokenizer import begin_of_text, num_text_bytes, pack_text, unpack_text
from jobs.sealing.content import SEALED, ContentSealer, ContentUnreadableError, intact
from jobs.sealing.keys import NAME_BYTES


@dataclass(frozen=True, slots=True)
class CountedPrompt:
    """A prompt as the engine will read it.

    Attributes:
        packed_ids: little-endian int32, compressed with zstandard.
        num_tokens: number of ids.
        fingerprint: of the tokenizer and template that made them.
        is_plain: it is a text without chat template, so its answer is a text without parts.
        prefixes: hashes of its beginnings, see `prefixes.digests`; empty if the ids were stored before.
    """

    packed_ids: bytes
    num_tokens: int
    fingerprint: str
    is_plain: bool = False
    prefixes: Digests = NO_DIGESTS


class Counter(Protocol):
    """What renders and tokenizes a prompt; `PromptCounter` implements it."""

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the tokenizer and its chat template."""

    def count_prompt(self, canonical: str, *, limit: int | None = None) -> CountedPrompt:
        """Render the canonical JSON and return its ids; refuse more than `limit` tokens."""


class SetCounter(Counter, Protocol):
    """A counter that counts many short prompts in one call."""

    def count_together(self, canonicals: Sequence[str]) -> Sequence[CountedPrompt | None]:
        """Count these prompts; None: count that one by itself, it may be long or an error."""


@dataclass(frozen=True, slots=True)
class NewText:
    """A prompt to store, hashed and compressed on construction (milliseconds for long ones).

    Attributes:
        canonical: the messages as canonical JSON; not kept.
        counted: its token ids, if already known.
        sha256: of the canonical JSON; identifies the content.
        packed: the canonical JSON, compressed.
        num_bytes: size of the canonical JSON in UTF-8.
    """

    canonical: InitVar[str]
    counted: CountedPrompt | None = None
    sha256: bytes = field(init=False)
    packed: bytes = field(init=False)
    num_bytes: int = field(init=False)

    def __post_init__(self, canonical: str) -> None:
        encoded = canonical.encode()
        object.__setattr__(self, "num_bytes", len(encoded))
        object.__setattr__(self, "sha256", sha256(encoded).digest())
        object.__setattr__(self, "packed", pack_text(canonical))

    def stored_bytes(self, sealer: ContentSealer) -> int:
        """Compute what a row of it adds to what its tenant keeps."""
        packed = len(self.packed) + sealer.num_added_bytes
        if self.counted is None:
            return packed
        ids = len(self.counted.packed_ids) + sealer.num_added_bytes
        return packed + ids + num_kept_bytes(self.counted.prefixes)


@dataclass(slots=True)
class StoredTexts:
    """Texts that a transaction holds.

    Attributes:
        ids: by SHA-256.
        num_new_bytes: what those of them that are new add to what their tenant keeps.
    """

    ids: dict[bytes, UUID] = field(default_factory=dict)
    num_new_bytes: int = 0


def store(session: Session, texts: Sequence[NewText], *, tenant_id: UUID) -> StoredTexts:
    """Store these texts, held until this transaction ends.

    Equal texts share a row. Rows are locked FOR KEY SHARE, so a concurrent `drop_unused` waits and then sees
    the job that this transaction inserts.
    """
    wanted = {text.sha256: text for text in texts}
    found, sealer = StoredTexts(), sealer_in(session)
    # In a fixed order, so that two transactions with the same texts cannot deadlock.
    while missing := sorted(wanted.keys() - found.ids.keys()):
        asked = insertion({digest: wanted[digest] for digest in missing}, tenant_id)
        found.ids |= (new := dict[bytes, UUID](statements.fetch(session, *asked)))
        found.num_new_bytes += sum(wanted[digest].stored_bytes(sealer) for digest in new)
        if existing := [digest for digest in missing if digest not in new]:
            found.ids |= _lock_existing(session, {digest: wanted[digest] for digest in existing}, tenant_id)
    return found


@dataclass(frozen=True, slots=True)
class StoredText:
    """A text as it is stored, opened.

    Attributes:
        tenant_id: the owner.
        body: the canonical JSON, compressed.
        token_ids: of a prompt that `fingerprint` has counted; None: nobody has.
        num_tokens: how many these are.
        fingerprint: of the tokenizer and template that made them.
        prefixes: keyed hashes of their beginnings, see `prompts.prefixes`.
    """

    id: UUID
    tenant_id: UUID
    body: bytes
    token_ids: bytes | None
    num_tokens: int | None
    fingerprint: str | None
    prefixes: bytes | None

    @property
    def canonical(self) -> str:
        """The canonical JSON."""
        return unpack_text(self.body)

    def counted_by(self, counter: Counter) -> CountedPrompt | None:
        """Return its ids; None if this counter has not counted it."""
        if self.token_ids is None or self.num_tokens is None or self.fingerprint != counter.fingerprint:
            return None
        is_plain = messages.is_plain(begin_of_text(self.body))
        return CountedPrompt(self.token_ids, self.num_tokens, self.fingerprint, is_plain=is_plain)


def read(
    session: Session, text_ids: Collection[UUID], *, max_bytes: int | None = None
) -> dict[UUID, StoredText]:
    """Read these texts by their ids, except those that are gone or cannot be decrypted.

    Args:
        session: the caller's transaction.
        text_ids: of the texts.
        max_bytes: of a text's canonical JSON; longer ones are left out, too. None: however long.
    """
    sealer, found = sealer_in(session), dict[UUID, StoredText]()
    for row in session.execute(_rows(text_ids, max_bytes=max_bytes)):
        with suppress(ContentUnreadableError):
            text = _opened(sealer, row)
            # One letter, repeated, is short when compressed.
            if max_bytes is None or num_text_bytes(text.body) <= max_bytes:
                found[text.id] = text
    return found


def load(session: Session, text_id: UUID) -> StoredText:
    """Read one text.

    Raises:
        NoResultFound: it is gone.
        ContentUnreadableError: it cannot be decrypted.
    """
    return _opened(sealer_in(session), session.execute(_rows([text_id])).one())


_CONTENT: Final = (PromptText.body, PromptText.token_ids)


def _rows(text_ids: Collection[UUID], *, max_bytes: int | None = None) -> Select[*tuple[Any, ...]]:
    """Select texts as they are stored: in a set one that cannot be decrypted must not stop the others."""
    columns = PromptText.num_tokens, PromptText.fingerprint, PromptText.prefixes
    content = (type_coerce(each, LargeBinary) for each in _CONTENT)
    rows = select(PromptText.id, PromptText.tenant_id, *content, *columns).where(PromptText.id.in_(text_ids))
    return rows if max_bytes is None else rows.where(plain_length(PromptText.body) <= max_bytes)


def _opened(sealer: ContentSealer, row: Sequence[Any]) -> StoredText:
    text_id, tenant_id, body, token_ids, *counted = row
    ids = None if token_ids is None else sealer.open_bytes(token_ids, TOKEN_IDS.place)
    return StoredText(text_id, tenant_id, sealer.open_bytes(body, BODY.place), ids, *counted)


def unpacked(body: bytes, name: str) -> Any:  # noqa: ANN401  # JSON
    """Read what a stored text that is no prompt has by this name; StoredChangedError: it is not intact."""
    with intact((zstandard.ZstdError, ValueError, KeyError, TypeError)):
        return json.loads(unpack_text(body))[name]


def count(text: StoredText, counter: Counter, *, limit: int | None = None) -> CountedPrompt:
    """Return the text's ids by this counter: the stored ones, or new ones, not stored.

    Raises:
        PromptTooLongError: the text has more than `limit` tokens.
    """
    return text.counted_by(counter) or counter.count_prompt(text.canonical, limit=limit)


def counts_of(texts: Iterable[StoredText], counter: Counter) -> dict[UUID, CountedPrompt]:
    """Return the stored ids of those texts that this counter has counted, by the texts' ids."""
    stored = {text.id: text.counted_by(counter) for text in texts}
    return {text_id: found for text_id, found in stored.items() if found is not None}


def counted(session: Session, text: StoredText, counter: Counter) -> CountedPrompt:
    """Return the text's ids by this counter; count and store them if necessary."""
    found = count(text, counter)
    keep_counts(session, [(text, found)])
    return found


def keep_counts(session: Session, counts: Iterable[tuple[StoredText, CountedPrompt]]) -> None:
    """Store the ids with these texts, except those that came from there."""
    new = [(text, found) for text, found in counts if text.token_ids is not found.packed_ids]
    values = {
        "ids": [text.id for text, _ in new],
        "prefixes": [keyed(found.prefixes, text.tenant_id) for text, found in new],
        "token_ids": [found.packed_ids for _, found in new],
        "num_tokens": [found.num_tokens for _, found in new],
        "fingerprints": [found.fingerprint for _, found in new],
    }
    if new:
        statements.fetch(session, _KEEP_COUNTS, values)


# In the order in which `store` and `drop_unused` lock rows.
_KEEP_COUNTS: Final = Statement(
    """
    WITH held AS (
        SELECT id FROM texts WHERE id = ANY(%(ids)s::uuid[]) ORDER BY sha256 FOR NO KEY UPDATE
    )
    UPDATE texts
    SET token_ids = given.token_ids, num_tokens = given.num_tokens, fingerprint = given.fingerprint,
        prefixes = given.prefixes
    FROM held, unnest(%(ids)s::uuid[], %(token_ids)s::bytea[], %(num_tokens)s::integer[],
        %(fingerprints)s::text[], %(prefixes)s::bytea[])
        AS given (id, token_ids, num_tokens, fingerprint, prefixes)
    WHERE texts.id = held.id AND given.id = held.id
    """,
    sealed={"token_ids": TOKEN_IDS},
)


def drop_unused(session: Session, text_ids: Sequence[UUID]) -> int:
    """Delete these texts unless a job, response or summary still refers to them; return how many.

    Two statements: the first waits for writers that hold the rows, the second sees what they committed.
    Locks rows in the order in which `store` locks those that exist.
    """
    if not text_ids:
        return 0
    locked = session.scalars(
        select(PromptText.id).where(PromptText.id.in_(text_ids)).order_by(PromptText.sha256).with_for_update()
    ).all()
    of_responses = (StoredResponse.request_id, StoredResponse.input_id)
    referring = (Job.text_id, Job.guide_id, JobTensors.text_id, Summary.template_id, *of_responses)
    used = or_(*(exists().where(each == PromptText.id) for each in referring))
    unused = delete(PromptText).where(PromptText.id.in_(locked), ~used)
    return len(session.scalars(unused.returning(PromptText.id)).all())


def _lock_existing(session: Session, texts: Mapping[bytes, NewText], tenant_id: UUID) -> dict[bytes, UUID]:
    keys = [bytes.fromhex(each) for each in sealer_in(session).key_names]
    given = {"tenant_id": tenant_id, "digests": list(texts), "sealed": SEALED.encode(), "keys": keys}
    rows = statements.fetch(session, _LOCK_EXISTING, given)
    for digest, text_id, can_be_read in rows:
        if not can_be_read:
            _store_anew(session, text_id, texts[digest], tenant_id)
    return {digest: text_id for digest, text_id, _ in rows}


# Whether a row can be read is what `sealed_columns.has_key` says of its columns.
_LOCK_EXISTING: Final = Statement(f"""
    SELECT sha256, id, (
        SELECT bool_and(stored IS NULL OR substr(stored, 1, {len(SEALED)}) <> %(sealed)s::bytea
            OR substr(stored, {len(SEALED) + 1}, {NAME_BYTES}) = ANY(%(keys)s::bytea[]))
        FROM (VALUES (body), (token_ids)) AS content (stored)
    )
    FROM texts WHERE tenant_id = %(tenant_id)s::uuid AND sha256 = ANY(%(digests)s::bytea[])
    ORDER BY sha256 FOR KEY SHARE
""")  # noqa: S608  # built from constants


def _store_anew(session: Session, text_id: UUID, text: NewText, tenant_id: UUID) -> None:
    """Replace what a missing key sealed by the same content, for all jobs that use it."""
    values: dict[str, object] = {"body": text.packed, "token_ids": None}
    if (found := text.counted) is not None:
        values |= {"token_ids": found.packed_ids, "num_tokens": found.num_tokens}
        values |= {"fingerprint": found.fingerprint, "prefixes": keyed(found.prefixes, tenant_id)}
    session.execute(update(PromptText).where(PromptText.id == text_id).values(values))


def insertion(texts: Mapping[bytes, NewText], tenant_id: UUID) -> Query:
    """Build the query that inserts those texts that are not stored yet, and returns their SHA-256 and ids.

    Args:
        texts: by SHA-256; in a fixed order, so that two transactions with the same texts cannot deadlock.
        tenant_id: of the texts.
    """
    counts = [text.counted for text in texts.values()]
    values: dict[str, list[object]] = {
        "id": [uuid7() for _ in texts],
        "tenant_id": [tenant_id] * len(texts),
        "sha256": [*texts],
        "body": [text.packed for text in texts.values()],
        "token_ids": [each and each.packed_ids for each in counts],
        "num_tokens": [each and each.num_tokens for each in counts],
        "fingerprint": [each and each.fingerprint for each in counts],
        "prefixes": [each and keyed(each.prefixes, tenant_id) for each in counts],
    }
    unless_stored = "ON CONFLICT (tenant_id, sha256) DO NOTHING RETURNING sha256, id"
    return insert_set(PromptText, values, then=unless_stored)
