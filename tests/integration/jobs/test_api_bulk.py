import json
from collections.abc import Iterator

import httpx2
from sqlalchemy import func, select
from sqlalchemy.orm import Session, sessionmaker

from api_server import ApiProcess, error_of
from cli.stack.servers.valkey import EmbeddedValkey
from jobs.models import Job, PromptText
from jobs.settings import DatabaseSettings
from support import eventually, refusing

BAD = {
    7: (b"no json", "invalid_json", None),
    8: (b'{"input":"a","max_tokens":0}', "invalid_value", "max_tokens"),
    9: (b'{"input":"a\\u0000"}', "invalid_value", "input"),
    2500: (b'{"imput":"a"}', "missing_field", "input"),
    4999: (b'{"input":"a","extra":1}', "unknown_field", "extra"),
}


def line(number: int) -> bytes:
    if number in BAD:
        return BAD[number][0]
    if number % 1000 == 0:
        return b""
    return json.dumps({"input": f"document {number % 100}", "custom_id": str(number)}).encode()


def num_jobs(sessions: sessionmaker[Session]) -> int:
    with sessions() as session:
        return session.scalar(select(func.count()).select_from(Job)) or 0


def test_five_thousand_lines_are_accepted_but_the_bad_ones(
    http: httpx2.Client, sessions: sessionmaker[Session]
) -> None:
    content = b"\n".join(line(number) for number in range(1, 5001))
    answer = http.post("/v1/jobs/bulk", content=content)
    report = answer.json()
    assert answer.status_code == 200
    assert (report["object"], report["accepted"], report["rejected"]) == ("bulk", 4990, 5)
    assert [(each["line"], each["code"], each["param"]) for each in report["errors"]] == [
        (number, code, param) for number, (_, code, param) in sorted(BAD.items())
    ]
    with sessions() as session:
        rows = session.execute(select(Job.custom_id, Job.id).order_by(Job.id)).all()
        assert session.scalar(select(func.count()).select_from(PromptText)) == 100
    accepted = [n for n in range(1, 5001) if n not in BAD and n % 1000]
    assert [row.custom_id for row in rows] == [str(number) for number in accepted]
    assert [f"job_{row.id.hex}" for row in rows] == report["ids"]


def test_lines_of_one_request_were_submitted_together_although_stored_in_slices(
    http: httpx2.Client, sessions: sessionmaker[Session]
) -> None:
    http.post("/v1/jobs/bulk", content=b'{"input":"a"}\n' * 1000).raise_for_status()
    http.post("/v1/jobs/bulk", content=b'{"input":"a"}\n').raise_for_status()
    with sessions() as session:
        counts = session.scalars(select(func.count(Job.id)).group_by(Job.created_at).order_by(Job.created_at))
        assert counts.all() == [1000, 1]


def test_a_line_that_the_database_refuses_fails_alone(
    http: httpx2.Client, sessions: sessionmaker[Session]
) -> None:
    lines = [
        json.dumps({"input": f"document {number}", "custom_id": str(number)}) for number in range(1, 101)
    ]
    with refusing(sessions, "BEFORE INSERT ON jobs FOR EACH ROW WHEN (NEW.custom_id IN ('17', '60'))"):
        report = http.post("/v1/jobs/bulk", content="\n".join(lines)).json()
    assert (report["accepted"], report["rejected"]) == (98, 2)
    assert [(each["line"], each["code"]) for each in report["errors"]] == [
        (17, "internal_error"),
        (60, "internal_error"),
    ]
    with sessions() as session:
        rows = session.execute(select(Job.custom_id, Job.id).order_by(Job.id)).all()
    assert [row.custom_id for row in rows] == [str(n) for n in range(1, 101) if n not in (17, 60)]
    assert [f"job_{row.id.hex}" for row in rows] == report["ids"]


def test_lines_are_stored_while_the_rest_is_still_on_its_way(
    http: httpx2.Client, sessions: sessionmaker[Session]
) -> None:
    def halves() -> Iterator[bytes]:
        yield b'{"input":"a"}\n' * 1000 + b'{"inp'
        eventually(lambda: num_jobs(sessions) >= 900)
        yield b'ut":"b"}\r\n' + b'{"input":"c"}'

    report = http.post("/v1/jobs/bulk", content=halves()).json()
    assert (report["accepted"], report["rejected"]) == (1002, 0)


def test_a_line_over_the_limit_harms_no_other(http: httpx2.Client) -> None:
    def lines() -> Iterator[bytes]:
        yield b'{"input":"a"}\n{"input":"'
        for _ in range(9):
            yield b"a" * 2**20
        yield b'"}\n{"input":"b"}\n'

    report = http.post("/v1/jobs/bulk", content=lines()).json()
    assert report["accepted"] == 2
    assert [(each["line"], each["code"]) for each in report["errors"]] == [(2, "request_too_large")]


def test_an_empty_body_is_no_error(http: httpx2.Client) -> None:
    report = http.post("/v1/jobs/bulk", content=b"\n\n").json()
    assert report == {"object": "bulk", "accepted": 0, "rejected": 0, "ids": [], "errors": []}


def test_lines_and_bytes_have_a_limit(
    database_settings: DatabaseSettings, valkey: EmbeddedValkey, sessions: sessionmaker[Session]
) -> None:
    small = {"LONGBATCH_API__MAX_BULK_LINES": "5", "LONGBATCH_API__MAX_BULK_BYTES": "2000"}
    api = ApiProcess(database_settings, valkey.url, **small)
    try:
        with api.client() as http:
            report = http.post("/v1/jobs/bulk", content=b'{"input":"a"}\n' * 8).json()
            assert (report["accepted"], report["rejected"]) == (5, 3)
            assert [(each["line"], each["code"]) for each in report["errors"]] == [(6, "request_too_large")]
            refused = http.post("/v1/jobs/bulk", content=b"a" * 2001)
            assert (refused.status_code, error_of(refused)["code"]) == (413, "request_too_large")
    finally:
        api.stop()
    assert num_jobs(sessions) == 5
