"""Documents in the domain: one for the same bytes, claimed by one worker, ended once, gone in the end."""

from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from uuid import UUID

import pytest
from sqlalchemy import func, select, text, update
from sqlalchemy.orm import Session, sessionmaker

from document_support import DAY, LEASE, claim_next, claim_one, upload
from jobs import documents, turns
from jobs.database import database_now
from jobs.documents import extraction
from jobs.documents.extraction import MAX_ATTEMPTS, ExtractedText
from jobs.errors import NotFoundError
from jobs.ids import uuid7
from jobs.models import DEFAULT_TENANT, Tenant
from jobs.models.document import Document, DocumentText
from jobs.models.file import File
from jobs.models.turn import EXTRACTION
from jobs.prompts.tokenizer import pack_text
from jobs.states.document import DocumentErrorCode
from jobs.states.file import FileState
from worker.documents import rounds

TEXT = "Grüße.\n"
EXTRACTED = ExtractedText(
    body=pack_text(TEXT),
    num_chars=len(TEXT),
    num_tokens=4,
    fingerprint="words-1",
    pages=None,
    language="de",
    title=None,
    warnings=[],
)


def file_states(session: Session) -> list[str]:
    return list(session.scalars(select(File.state).order_by(File.id)))


def lose_leases(session: Session) -> None:
    session.execute(update(Document).values(lease_expires_at=func.clock_timestamp()))


def test_the_same_bytes_are_the_same_document_and_are_stored_once(session: Session) -> None:
    first, is_new = upload(session)
    again, is_new_again = upload(session)
    assert (is_new, is_new_again) == (True, False)
    assert again.id == first.id
    assert file_states(session) == [FileState.COMPLETE, FileState.DELETED]
    other, _ = upload(session, b"other")
    assert other.id != first.id


def test_documents_sent_at_the_same_time_are_one(
    sessions: sessionmaker[Session], background: Callable[..., Future[UUID]]
) -> None:
    def send() -> UUID:
        with sessions.begin() as session:
            return upload(session)[0].id

    assert len({each.result() for each in [background(send) for _ in range(4)]}) == 1


def test_a_document_that_has_failed_is_tried_again_when_it_is_sent_again(session: Session) -> None:
    first, _ = upload(session)
    error = extraction.error_of(DocumentErrorCode.MISSING_EXTRA, "not here")
    assert extraction.fail_extraction(session, claim_one(session).turn, error, lifetime=DAY)
    assert (first.state, first.error) == ("failed", error)
    again, is_new = upload(session)
    assert (again.id, is_new, again.state, again.error, again.attempt) == (
        first.id,
        True,
        "extracting",
        None,
        0,
    )
    assert extraction.finish_extraction(session, claim_one(session), EXTRACTED, lifetime=DAY)
    assert documents.load_text(session, first.id) == TEXT


def test_a_document_that_is_ready_lives_longer_when_it_is_sent_again(session: Session) -> None:
    document, _ = upload(session)
    extraction.finish_extraction(session, claim_one(session), EXTRACTED, lifetime=timedelta(seconds=1))
    before = document.expires_at
    assert upload(session) == (document, False)
    assert before is not None
    assert document.expires_at is not None
    assert document.expires_at > before


def test_one_worker_has_a_document_at_a_time(sessions: sessionmaker[Session]) -> None:
    with sessions.begin() as session:
        for content in (b"first", b"second", b"third"):
            upload(session, content)
        served = claim_one(session)
    with sessions.begin() as one, sessions.begin() as two:
        two.execute(text("SET LOCAL lock_timeout = '500ms'"))
        claims = [served, claim_one(one), claim_one(two)]
        assert len({each.document_id for each in claims}) == 3
        assert claim_next(one) is None


def test_a_worker_that_lost_its_lease_writes_nothing(session: Session) -> None:
    document, _ = upload(session)
    stale = claim_one(session)
    lose_leases(session)
    assert turns.renew(session, [stale.turn], lease=LEASE) == set()
    claim = claim_one(session)
    assert (claim.document_id, claim.turn.attempt) == (document.id, 2)
    error = extraction.error_of(DocumentErrorCode.CORRUPT, "no")
    assert not extraction.finish_extraction(session, stale, EXTRACTED, lifetime=DAY)
    assert not extraction.fail_extraction(session, stale.turn, error, lifetime=DAY)
    assert not turns.release(session, stale.turn)
    assert document.state == "extracting"
    assert turns.renew(session, [claim.turn], lease=LEASE) == {claim.turn.lease_id}
    assert extraction.finish_extraction(session, claim, EXTRACTED, lifetime=DAY)
    assert not extraction.finish_extraction(session, claim, EXTRACTED, lifetime=DAY)
    assert (document.state, document.num_tokens, document.file_id) == ("ready", 4, None)
    assert file_states(session) == [FileState.DELETED]


def test_a_document_that_loses_every_worker_is_given_up(session: Session) -> None:
    document, _ = upload(session)
    for _ in range(MAX_ATTEMPTS):
        claim_one(session)
        lose_leases(session)
    turn = turns.claim(session, EXTRACTION, lease=LEASE)
    assert turn is not None
    assert turn.is_spent
    assert extraction.give_up(session, turn)
    assert document.error is not None
    assert (document.state, document.error["code"]) == ("failed", "extraction_abandoned")


def test_a_document_that_was_put_back_is_as_good_as_new(session: Session) -> None:
    upload(session)
    assert turns.release(session, claim_one(session).turn)
    assert claim_one(session).turn.attempt == 1


def test_a_thousand_documents_of_one_tenant_do_not_keep_another_waiting(session: Session) -> None:
    for number in range(5):
        upload(session, f"mine {number}".encode())
    other = Tenant(id=uuid7(), name=f"somebody else {uuid7()}")
    session.add(other)
    session.flush()
    upload(session, tenant_id=other.id)
    claimed = [claim_one(session).turn.tenant_id for _ in range(3)]
    assert claimed == [DEFAULT_TENANT, other.id, DEFAULT_TENANT]


def test_a_deleted_document_is_gone_with_its_text_also_while_it_is_extracted(session: Session) -> None:
    ready, _ = upload(session)
    extraction.finish_extraction(session, claim_one(session), EXTRACTED, lifetime=DAY)
    under_way, _ = upload(session, b"second")
    claim = claim_one(session)
    for each in (ready, under_way):
        documents.remove(session, each.id, tenant_id=DEFAULT_TENANT)
        with pytest.raises(NotFoundError):
            documents.get(session, each.id, tenant_id=DEFAULT_TENANT)
    assert not extraction.finish_extraction(session, claim, EXTRACTED, lifetime=DAY)
    assert session.scalar(select(func.count()).select_from(DocumentText)) == 0
    assert set(file_states(session)) == {FileState.DELETED}
    again, is_new = upload(session)
    assert is_new
    assert again.id != ready.id


def test_a_guard_keeps_a_document(session: Session) -> None:
    document, _ = upload(session)

    def refuse(_session: Session, document_id: UUID) -> None:
        assert document_id == document.id
        raise RuntimeError("needed")

    with pytest.raises(RuntimeError, match="needed"):
        documents.remove(session, document.id, tenant_id=DEFAULT_TENANT, guards=[refuse])
    assert document.state == "extracting"


def test_documents_past_their_life_are_gone_unless_they_are_needed(session: Session) -> None:
    kept, _ = upload(session)
    extraction.finish_extraction(session, claim_one(session), EXTRACTED, lifetime=timedelta(0))
    gone, _ = upload(session, b"second")
    extraction.finish_extraction(session, claim_one(session), EXTRACTED, lifetime=timedelta(0))
    with pytest.raises(NotFoundError):
        documents.get(session, kept.id, tenant_id=DEFAULT_TENANT)
    now = database_now(session)
    assert documents.expire(session, now=now, is_needed=Document.id == kept.id) == 1
    session.expire_all()
    assert (kept.state, gone.state) == ("ready", "deleted")
    assert documents.prune(session, before=now) == 0
    assert documents.prune(session, before=database_now(session) + DAY) == 1


def test_maintenance_removes_what_is_over(sessions: sessionmaker[Session]) -> None:
    with sessions.begin() as session:
        upload(session)
        extraction.finish_extraction(session, claim_one(session), EXTRACTED, lifetime=timedelta(0))
    rounds.prune(sessions, is_stopping=lambda: False)
    with sessions() as session:
        assert session.scalars(select(Document.state)).all() == ["deleted"]


@pytest.mark.parametrize(
    ("start", "end"),
    [(0, None), (3, None), (0, 0), (2, 5), (5, 2), (0, 10**9), (10**9, None), (299_990, 300_010)],
)
def test_any_part_of_a_text_can_be_read(start: int, end: int | None) -> None:
    text = "Grüße \U0001f30a!\r\n" * 100_000
    pieces = list(documents.iterate_text(pack_text(text), start=start, end=end))
    assert "".join(pieces) == text[start:end]
    assert max(map(len, pieces), default=0) <= 2**18
