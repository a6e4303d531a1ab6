"""A batch of any size waits in its file for room in its tenant's quota."""

from uuid import UUID

import pytest
from sqlalchemy import Engine, event, update
from sqlalchemy.orm import Session, sessionmaker

from batch_support import Service, lines, tools, validate_next
from jobs.models import DEFAULT_TENANT, Batch
from jobs.settings import LimitSettings
from jobs.tenants import keys, quotas, stored_bytes
from jobs.tenants.keys import Scope
from jobs.tenants.quotas import QuotaUsage, TenantLimits
from openai_support import chat_line
from support import MODEL


def service_with(sessions: sessionmaker[Session], **limits: int) -> Service:
    return Service(sessions, tools(limits=LimitSettings(**limits)))


def held(sessions: sessionmaker[Session]) -> QuotaUsage:
    with sessions() as session:
        return quotas.current_usage(session, DEFAULT_TENANT)


def begun(service: Service, content: list[dict[str, object]]) -> UUID:
    batch_id = service.create(content)
    assert validate_next(service.sessions, service.tools)
    service.settle()
    return batch_id


@pytest.mark.parametrize("limits", [{"max_jobs": 3}, {"max_enqueued_tokens": 60}])
def test_lines_become_jobs_as_the_quota_has_room_and_each_once(
    sessions: sessionmaker[Session], limits: dict[str, int]
) -> None:
    service = service_with(sessions, **limits)
    batch_id = begun(service, lines(10))
    assert 0 < len(service.jobs(batch_id)) < 10
    assert not service.batch(batch_id).is_expanded
    for _ in range(10):
        assert held(sessions).is_within(quotas.limits_of(service.tools.limits, None))
        service.complete()
        service.settle()
    assert service.batch(batch_id).state == "completed"
    assert service.outcome(batch_id) == (sorted(f"line-{number}" for number in range(10)), [])
    assert held(sessions) == QuotaUsage()


def test_a_line_larger_than_the_whole_quota_fails_alone(sessions: sessionmaker[Session]) -> None:
    service = service_with(sessions, max_enqueued_tokens=300)
    batch_id = begun(service, [*lines(2), chat_line("huge", model=MODEL, max_tokens=1000)])
    service.complete()
    service.settle()
    assert service.outcome(batch_id) == (["line-0", "line-1"], ["huge"])
    (line,) = service.read(service.batch(batch_id).error_file_id)
    response = line["response"]
    assert isinstance(response, dict)
    assert response["status_code"] == 429
    assert response["body"]["error"]["code"] == "token_limit_exceeded"


def test_a_full_batch_leaves_room_for_what_somebody_waits_for(sessions: sessionmaker[Session]) -> None:
    service = service_with(sessions, max_jobs=20)
    begun(service, lines(30))
    assert held(sessions).jobs == 18


def test_a_full_batch_leaves_a_tenth_of_the_storage_to_other_requests(
    sessions: sessionmaker[Session],
) -> None:
    limits = LimitSettings(max_stored_bytes=20_000)
    service = Service(sessions, tools(limits=limits))
    batch_id = begun(service, lines(500))
    with sessions() as session:
        stored = stored_bytes.read(session, DEFAULT_TENANT)
    assert 17_500 < stored <= 18_000
    assert not service.batch(batch_id).is_expanded


@pytest.mark.parametrize(("whole", "part"), [(0, 0), (1, 1), (1000, 900)])
def test_a_part_of_a_storage_limit_is_never_unlimited(whole: int, part: int) -> None:
    limits = TenantLimits(max_enqueued_tokens=1, max_jobs=1, max_requests=1, max_stored_bytes=whole)
    assert limits.part(0.9).max_stored_bytes == part


def test_a_batch_that_waits_for_room_can_be_cancelled(sessions: sessionmaker[Session]) -> None:
    service = service_with(sessions, max_jobs=3)
    batch_id = begun(service, lines(10))
    service.cancel(batch_id)
    service.settle()
    assert service.batch(batch_id).state == "cancelled"
    assert held(sessions) == QuotaUsage()


@pytest.mark.parametrize(
    ("of_key", "summing"), [(False, "sum(jobs.reserved_tokens)"), (True, "sum(reserved_tokens)")]
)
def test_a_round_looks_once_at_a_full_quota_however_many_batches_wait_for_it(
    sessions: sessionmaker[Session], engine: Engine, *, of_key: bool, summing: str
) -> None:
    service = service_with(sessions, max_jobs=100 if of_key else 2)
    waiting = [service.create(lines(2)) for _ in range(4)]
    if of_key:
        with sessions.begin() as session:
            limits = {"max_jobs": 2}
            key = keys.create(
                session, tenant_id=DEFAULT_TENANT, name="", scopes=[Scope.SUBMIT], limits=limits
            ).row
            session.execute(update(Batch).values(api_key_id=key.id))
    service.settle_validation()
    service.settle()
    late, cancelled = service.create(lines(2)), waiting.pop()
    service.settle_validation()
    service.cancel(cancelled)
    sums: list[str] = []

    def watch(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        sums.extend([statement] if summing in statement else [])

    event.listen(engine, "before_cursor_execute", watch)
    try:
        service.advance()
    finally:
        event.remove(engine, "before_cursor_execute", watch)
    assert len(sums) == 1
    assert len(service.jobs(late)) == (2 if of_key else 0), "its tenant has room"
    assert sum(len(service.jobs(each)) for each in waiting) <= 2
    assert service.batch(cancelled).num_stopped == 2, "what needs no room waits for none"
    for _ in range(10):
        service.complete()
        service.settle()
    assert {service.batch(each).state for each in (*waiting, late)} == {"completed"}
