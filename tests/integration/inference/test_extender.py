"""Jobs that have used up their reservations at the same time: one transaction answers all of them."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import cast

import pytest
from sqlalchemy import create_engine, event, func, select, text, update
from sqlalchemy.orm import Session, sessionmaker

from cli.stack.ports import LOOPBACK
from jobs.database import transaction
from jobs.ids import uuid7
from jobs.models import Reservation
from jobs.scheduling import growth
from jobs.scheduling.growth import Extended, Extension, Granted, WaitForBlocks
from jobs.scheduling.sizing import ClaimPolicy
from jobs.starting import Claim
from jobs.transitions import Lease, LeaseLost
from local_engine import free_ports
from support import CAPACITY, ENGINE, POLICY, claim_one, register_engine, spec, submit_one
from worker.inference.extender import Extender

POOL = replace(CAPACITY, max_batch_size=16, max_blocks=700)


def running(session: Session, number: int) -> list[Claim]:
    register_engine(session, capacity=POOL)
    for _ in range(number):
        submit_one(session, spec(100, max_tokens=30_000))
    return [claim_one(session) for _ in range(number)]


def asked(claims: Sequence[Claim]) -> list[Extension]:
    return [Extension(each.lease, each.output_tokens) for each in claims]


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as found:
        yield found


def extended(
    sessions: sessionmaker[Session],
    threads: ThreadPoolExecutor,
    wanted: Sequence[Extension],
    *,
    policy: Callable[[], ClaimPolicy] = lambda: POLICY,
) -> list[Extended | BaseException]:
    extender = Extender(ENGINE, sessions, policy=policy, threads=threads)

    async def all_at_once() -> list[Extended | BaseException]:
        return await asyncio.gather(*[extender.extend(each) for each in wanted], return_exceptions=True)

    return asyncio.run(asyncio.wait_for(all_at_once(), 60))


def test_extensions_of_one_transaction_never_take_the_same_blocks(session: Session) -> None:
    claims = running(session, 8)
    found: Sequence[Extended] = [Granted(0)]
    while any(isinstance(each, Granted) for each in found):
        found = growth.extend(session, ENGINE, asked(claims), policy=POLICY)
        claims = [
            replace(claim, output_tokens=each.tokens) if isinstance(each, Granted) else claim
            for claim, each in zip(claims, found, strict=True)
        ]
    assert session.scalar(select(func.sum(Reservation.blocks))) == POOL.max_blocks


def test_an_extension_without_a_lease_costs_the_others_nothing(session: Session) -> None:
    first, lost, last = running(session, 3)
    session.execute(
        text("UPDATE jobs SET lease_id = gen_random_uuid() WHERE id = :id"), {"id": lost.lease.job_id}
    )
    found = growth.extend(session, ENGINE, asked([first, lost, last]), policy=POLICY)
    assert [type(each) for each in found] == [Granted, LeaseLost, Granted]


def test_jobs_that_overtook_others_cost_no_statement_each(session: Session) -> None:
    """The engine's row is locked meanwhile."""
    claims = running(session, 8)
    session.execute(update(Reservation).values(overtakes=Reservation.job_id))
    statements: list[str] = []

    def note(_connection: object, _cursor: object, sql: str, *_: object) -> None:
        statements.append(sql)

    event.listen(session.connection(), "before_cursor_execute", note)
    growth.extend(session, ENGINE, asked(claims[:1]), policy=POLICY)
    session.flush()
    num_of_one = len(statements)
    growth.extend(session, ENGINE, asked(claims[1:]), policy=POLICY)
    session.flush()
    event.remove(session.connection(), "before_cursor_execute", note)
    assert len(statements) - num_of_one <= num_of_one


def test_each_of_many_that_ask_at_once_is_answered(
    sessions: sessionmaker[Session], threads: ThreadPoolExecutor
) -> None:
    with transaction(sessions) as session:
        claims = running(session, 8)
    found = extended(sessions, threads, asked(claims))
    tokens = [each.tokens for each in found if isinstance(each, Granted)]
    assert len(tokens) == len(claims)
    assert all(more > claim.output_tokens for more, claim in zip(tokens, claims, strict=True))


def test_an_extension_that_the_database_refuses_holds_up_no_other(
    sessions: sessionmaker[Session], threads: ThreadPoolExecutor
) -> None:
    with transaction(sessions) as session:
        claims = running(session, 4)
        refused = claims[1].lease.lease_id
        session.execute(
            text(
                "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
                f" $$ BEGIN IF new.lease_id = '{refused}' THEN RAISE 'refused'; END IF; RETURN new; END $$"
            )
        )
        session.execute(
            text("CREATE TRIGGER refuse BEFORE UPDATE ON reservations FOR EACH ROW EXECUTE FUNCTION refuse()")
        )
    try:
        found = extended(sessions, threads, asked(claims))
    finally:
        with transaction(sessions) as session:
            session.execute(text("DROP FUNCTION refuse CASCADE"))
    assert [isinstance(each, Granted) for each in found] == [True, False, True, True]
    assert found[1] == WaitForBlocks()


def test_an_extension_that_fails_for_any_other_reason_fails_its_run_alone(
    sessions: sessionmaker[Session], threads: ThreadPoolExecutor
) -> None:
    """It would fail each time it is asked for, and its job would keep its slot for ever."""
    with transaction(sessions) as session:
        wanted = asked(running(session, 3))
    wanted[1] = replace(wanted[1], produced=cast("int", "many"))
    found = extended(sessions, threads, wanted)
    assert [type(each) for each in found] == [Granted, TypeError, Granted]


def test_a_database_that_is_away_is_asked_once_for_all(threads: ThreadPoolExecutor) -> None:
    (port,) = free_ports(1)
    away = sessionmaker(create_engine(f"postgresql+psycopg://{LOOPBACK}:{port}/away"))
    policies: list[ClaimPolicy] = []

    def policy() -> ClaimPolicy:
        policies.append(POLICY)
        return POLICY

    wanted = [Extension(Lease(uuid7(), uuid7()), 100) for _ in range(50)]
    assert extended(away, threads, wanted, policy=policy) == [WaitForBlocks()] * 50
    assert len(policies) <= 2  # the first may have been alone
