"""Which job reads a document, and which ones wait for it: one at a time, and for no longer than it reads."""

from sqlalchemy import select
from sqlalchemy.orm import Session

import ending
from claiming import claims
from claiming.claims import FreedSlot
from claiming.questions import SHARED, aged, ask, booked, claim_all, end, read, sharing, unpredicted
from jobs.models import Reservation
from jobs.states import Lane
from support import ENGINE, register_engine, spec, submit_one


def test_two_that_read_one_document_beside_each_other_count_as_two_copies(session: Session) -> None:
    register_engine(session)
    policy = unpredicted(sharing())
    ask(session, 1)
    (first,) = claim_all(session, policy)
    ask(session, 1, lane=Lane.INTERACTIVE)
    (beside,) = claim_all(session, policy)  # waits for no reader
    assert booked(session) == first.blocks + beside.blocks
    read(session, first, beside)
    ask(session, 1)
    (follower,) = claim_all(session, policy)
    own = follower.blocks - SHARED
    assert booked(session) == first.blocks + beside.blocks + own
    read(session, follower)
    end(session, policy, first)
    ask(session, 1)
    (another,) = claim_all(session, policy)
    assert booked(session) == SHARED + own + (another.blocks - SHARED) + beside.blocks


def test_a_follower_that_never_reached_the_engine_is_no_reader(session: Session) -> None:
    register_engine(session)
    policy = unpredicted(sharing())
    ask(session, 1)
    (first,) = claim_all(session, policy)
    read(session, first)
    ask(session, 1)
    claim_all(session, policy)  # its worker dies here
    end(session, policy, first)
    for _ in range(3):
        ask(session, 1)
    assert not claim_all(session, policy), "whether the document is still there is not known"


def test_a_reader_that_fails_makes_way_for_the_next(session: Session) -> None:
    register_engine(session)
    policy = sharing()
    ask(session, 1)
    second = ask(session, 1)
    (reader,) = claim_all(session, policy)
    assert claim_all(session, policy) == []
    ending.fail(session, reader.lease, {"code": "x", "message": "y"})
    ended = [FreedSlot(reader.lease.lease_id, 0)]
    (next_reader,) = claims.claim_all(session, ENGINE, policy, ended=ended).claims
    assert next_reader.lease.job_id == second.id
    assert session.scalars(select(Reservation.shared_blocks)).one() == 0


def test_nobody_waits_for_a_younger_reader_nor_loses_its_room_meanwhile(session: Session) -> None:
    register_engine(session)
    policy = unpredicted(sharing())
    submit_one(session, spec(50_000, max_tokens=10_000))
    claim_all(session, policy)
    head = ask(session, 1, max_tokens=70_000)
    aged(session, head)
    small = ask(session, 1, max_tokens=64)
    submit_one(session, spec(10_000, max_tokens=28_000))  # fits only into the room that `head` waits for
    assert [each.lease.job_id for each in claim_all(session, policy)] == [small.id]


def test_the_oldest_question_that_fits_reads_its_document_however_large_younger_ones_are(
    session: Session,
) -> None:
    register_engine(session)
    policy = unpredicted(sharing())
    oldest, *_ = asked = [ask(session, 1, max_tokens=max_tokens) for max_tokens in (64, 128, 256, 512)]
    aged(session, *asked)
    (reader,) = claim_all(session, policy)
    assert reader.lease.job_id == oldest.id
    read(session, reader)
    assert len(claim_all(session, policy)) == 3


def test_of_questions_about_a_document_that_may_be_gone_one_looks(session: Session) -> None:
    register_engine(session)
    policy = unpredicted(sharing())
    ask(session, 1)
    end(session, policy, *claim_all(session, policy))
    oldest, *_ = [ask(session, 1, max_tokens=max_tokens) for max_tokens in (64, 128, 256, 512)]
    (first,) = claim_all(session, policy)
    assert first.lease.job_id == oldest.id
    assert not claim_all(session, policy), "whether the document is still there is not known"
    read(session, first)
    assert len(claim_all(session, policy)) == 3


def test_a_question_waits_for_a_younger_reader_of_a_higher_priority(session: Session) -> None:
    register_engine(session)
    policy = unpredicted(sharing())
    ask(session, 1)
    urgent = ask(session, 1, rank=1)
    (reader,) = claim_all(session, policy)
    assert reader.lease.job_id == urgent.id
    assert not claim_all(session, policy)
    read(session, reader)
    assert len(claim_all(session, policy)) == 1
