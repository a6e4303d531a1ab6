"""A job is accepted once, answered once, told once, and seen by its tenant alone."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rig.engines import Script
from rig.waiting import eventually
from rig.world import Caller, FedEngine, World

ABSENT = "job_00000000000070008000000000000000"


def test_every_accepted_job_has_one_result_and_one_event(caller: Caller, engine: FedEngine) -> None:
    jobs = [caller.submit() for _ in range(8)]
    assert {each.ended()["state"] for each in jobs} == {"completed"}
    assert {each.now()["attempt"] for each in jobs} == {0}
    # A job may take several requests: one asks for as much as earlier jobs of the tenant foretell.
    assert {*engine.scripted.marks()} == {each.mark for each in jobs}


def test_requests_under_one_idempotency_key_make_one_job(
    world: World, caller: Caller, engine: FedEngine
) -> None:
    world.api_proxy.delay_seconds = 0.02
    mark = world.next_mark()
    body = caller.body(mark, engine=engine, max_tokens=8, words=0, hook=None)
    world.other_marks.add(mark)

    def post(_: int) -> tuple[int, str]:
        answer = caller.http.post("/v1/jobs", json=body, headers={"Idempotency-Key": f"key-{mark}"})
        return answer.status_code, answer.json()["id"]

    with ThreadPoolExecutor(8) as pool:
        answers = set(pool.map(post, range(8)))
    assert len(answers) == 1
    ((status, job_id),) = answers
    assert status == 202
    other = caller.http.post(
        "/v1/jobs", json=body | {"max_tokens": 9}, headers={"Idempotency-Key": f"key-{mark}"}
    )
    assert other.status_code == 409
    eventually(lambda: caller.read(f"/v1/jobs/{job_id}")["state"] == "completed")
    assert engine.scripted.marks() == [mark]


def test_other_tenants_jobs_look_absent(world: World, caller: Caller, engine: FedEngine) -> None:
    job = caller.submit(Script(hold_at=2))
    engine.scripted.holding(job.mark)
    stranger = world.tenant("without-jobs")
    for method, path in [
        ("GET", "/v1/jobs/{}"),
        ("GET", "/v1/jobs/{}/result"),
        ("GET", "/v1/jobs/{}/events"),
        ("POST", "/v1/jobs/{}/cancel"),
        ("DELETE", "/v1/jobs/{}"),
    ]:
        theirs, absent = (stranger.http.request(method, path.format(each)) for each in (job.id, ABSENT))
        assert theirs.status_code == absent.status_code == 404
        assert theirs.text.replace(job.id, ABSENT) == absent.text
    assert stranger.read("/v1/jobs")["data"] == []
    stranger.http.post("/v1/jobs/cancel", json={"task": "generate"})
    assert job.now()["state"] == "running"
    engine.scripted.release(job.mark)


@pytest.mark.parametrize("limit", ["jobs", "tokens"])
def test_quotas_hold_exactly_however_many_ask_at_once(world: World, engine: FedEngine, limit: str) -> None:
    # The prompts have equal lengths: one accepted job shows how many tokens each takes.
    limits = {"jobs": ("--max-jobs", "5"), "tokens": ("--max-enqueued-tokens", "500")}[limit]
    caller = world.tenant(f"limited-by-{limit}", *limits)
    engine.scripted.default = Script(hold_at=0)
    bodies = []
    for _ in range(24):
        mark = world.next_mark()
        world.other_marks.add(mark)
        bodies.append(caller.body(mark, engine=engine, max_tokens=76, words=0, hook=None))
    world.api_proxy.delay_seconds = 0.05
    with world.another_api(caller) as same, ThreadPoolExecutor(24) as pool:
        callers = [caller, same] * 12
        asked = zip(callers, bodies, strict=True)
        answers = list(pool.map(lambda each: each[0].http.post("/v1/jobs", json=each[1]), asked))
    accepted = [each.json()["id"] for each in answers if each.status_code == 202]
    assert {each.status_code for each in answers} == {202, 429}
    # 24 tokens of the prompt and 76 of the answer: 100 each.
    assert len(accepted) == 5
    caller.http.post(f"/v1/jobs/{accepted[0]}/cancel")
    eventually(lambda: caller.read(f"/v1/jobs/{accepted[0]}")["state"] == "cancelled")
    again = [caller.http.post("/v1/jobs", json=body).status_code for body in bodies[:2]]
    assert again == [202, 429]
    engine.scripted.release_all()
    eventually(lambda: not world.rows.unfinished())


def test_a_webhook_is_sent_again_under_one_id_until_it_is_taken(world: World, caller: Caller) -> None:
    world.receiver.refusals["/again"] = 1
    job = caller.submit(hook="/again")
    eventually(lambda: len(world.receiver.of(job.id)) >= 2, what="the refused event comes again")


def test_a_live_reader_gets_each_token_once(caller: Caller, engine: FedEngine) -> None:
    job = caller.submit(Script(length=12, hold_at=1, pace_seconds=0.3))
    engine.scripted.holding(job.mark)
    said, place, num_early = "", "", 0
    for last_id, name, data in _events(caller, f"/v1/jobs/{job.id}/events?text=true"):
        engine.scripted.release(job.mark)
        place = last_id
        if name == "text":
            said += data["text"]
            num_early += not engine.scripted.of(job.mark)[-1].has_ended
    assert said == job.text
    assert num_early, "text comes while the engine goes on"
    rest = _events(caller, f"/v1/jobs/{job.id}/events?text=true", place)
    assert [data["text"] for _, name, data in rest if name == "text"] == []


def _events(caller: Caller, path: str, last_id: str = "") -> Iterator[tuple[str, str, dict[str, Any]]]:
    headers = {"Last-Event-ID": last_id} if last_id else {}
    with caller.http.stream("GET", path, headers=headers) as answer:
        fields: dict[str, str] = {}
        for line in answer.iter_lines():
            if line and not line.startswith(":"):
                name, _, value = line.partition(": ")
                fields[name] = value
            elif fields:
                yield fields.get("id", ""), fields["event"], json.loads(fields["data"])
                fields = {}


@pytest.mark.parametrize("when", ["start", "end"])
def test_a_row_that_the_database_refuses_fails_alone(
    world: World, caller: Caller, engine: FedEngine, when: str
) -> None:
    engine.scripted.default = Script(hold_at=2)
    before = [caller.submit() for _ in range(2)]
    engine.scripted.holding(*(each.mark for each in before))
    world.rows.plant_refusal("refused", when=when)
    # What cannot be completed is completed once the database takes it again, or has failed before.
    ends = {"start": ("failed",), "end": ("failed", "completed")}[when]
    caller.submit(custom_id="refused", ends=ends)
    after = [caller.submit() for _ in range(4)]
    engine.scripted.release_all()
    assert {each.ended()["state"] for each in [*before, *after]} == {"completed"}
    world.rows.lift_refusal()


@pytest.mark.usefixtures("engine")
def test_a_prompt_that_the_engine_refuses_fails_alone(caller: Caller) -> None:
    jobs = [caller.submit() for _ in range(3)]
    refused = caller.submit(Script(refuses_with=400), ends=("failed",))
    jobs += [caller.submit() for _ in range(3)]
    assert {each.ended()["state"] for each in jobs} == {"completed"}
    assert refused.ended()["state"] == "failed"


def test_a_prompt_that_can_never_fit_fails_alone(caller: Caller, engine: FedEngine) -> None:
    too_long = caller.submit(words=2990, max_tokens=200, ends=("failed",))
    job = caller.submit()
    assert job.ended()["state"] == "completed"
    assert too_long.ended()["error"]["code"] == "context_length_exceeded"
    assert too_long.mark not in engine.scripted.marks()
