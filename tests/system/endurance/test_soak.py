"""What `make prove-soak` sends, once each to the stack of these tests; its judge finds every promise kept."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import httpx2
import pytest

from bench.soak import receiver
from bench.soak.caller import Caller, Repeats
from bench.soak.checker import Checker
from bench.soak.journal import Journal
from bench.soak.load import ENDPOINT, HOOK, KINDS, Load
from bench.soak.verdict import Verdict, judge
from cli.stack.stack import Stack
from support import eventually
from system_support import Client

TENANT = "soaked"


@pytest.fixture(scope="module")
def key(stack: Stack) -> str:
    """The key of a tenant that has only what these tests send."""
    with Client(stack.urls) as operator:
        assert operator.http.post("/v1/tenants", json={"name": TENANT}).status_code == 201
        made = operator.http.post(
            "/v1/keys", json={"tenant": TENANT, "name": "soak", "scopes": ["submit", "read"]}
        )
        assert made.status_code == 201, made.text
        return str(made.json()["api_key"])


class Soaked:
    """A load and all that judges it, without the faults."""

    def __init__(self, directory: Path, stack: Stack, key: str) -> None:
        self.journal = Journal(directory / "journal.jsonl")
        self.log = directory / "webhooks.jsonl"
        self.secrets: dict[str, str] = {}
        self.call = partial(Caller, [stack.urls.api_url or ""], key, Repeats())
        self.checker = Checker(self.call())

    def open(self, stack: Stack, key: str, port: int) -> Load:
        hook = f"http://127.0.0.1:{port}"
        headers = {"Authorization": f"Bearer {key}"}
        with httpx2.Client(base_url=stack.urls.api_url or "", headers=headers, trust_env=False) as http:
            made: dict[str, Any] = http.post("/v1/webhook_endpoints", json={"url": hook + ENDPOINT}).json()
            self.secrets |= {
                HOOK: http.get("/v1/webhook_secret").json()["secret"],
                ENDPOINT: made["secret"],
            }
        return Load(self.call, self.journal, hook + HOOK, seed=1)

    def verdict(self, load: Load) -> Verdict:
        self.checker.look(self.journal.read())
        self.checker.read_usage()
        return judge(self.journal.read(), self.checker.seen, receiver.read(self.log), chats=load.chats)


@pytest.fixture
def soaked(tmp_path: Path, stack: Stack, key: str) -> Iterator[Soaked]:
    made = Soaked(tmp_path, stack, key)
    yield made
    made.journal.close()


def test_every_kind_of_request_keeps_its_promise_and_the_judge_sees_it(
    soaked: Soaked, stack: Stack, key: str
) -> None:
    with receiver.receiving(soaked.log, soaked.secrets) as port:
        load = soaked.open(stack, key, port)
        caller = load.call()
        for kind in KINDS:
            load.send_one(kind, caller, Random(1), f"{kind.__name__}-1")  # noqa: S311  # repeatable
        caller.close()
        assert load.faults == []
        assert {each.kind for each in soaked.journal.read()} == {"job", "batch", "summary", "answers"}
        seen = soaked.checker.seen
        promised = {each.id for each in soaked.journal.read() if each.kind == "job"}
        # As if their callers did not have the promises yet.

        def seen_all() -> bool:
            soaked.checker.look([])
            return promised <= seen.jobs.keys()

        eventually(seen_all, interval=0.2)
        eventually(lambda: soaked.verdict(load).is_good, interval=0.2)
        ended = soaked.checker.seen
        assert len(ended.objects) == 3
        # The judge looks at this very run: without one of its ends, it misses that one.
        gone = next(each for each in soaked.journal.read() if each.kind == "job")
        del ended.jobs[gone.id], ended.runs[gone.id]
        left = judge(soaked.journal.read(), ended, receiver.read(soaked.log))
        assert left.lost == [f"{gone.id} never ended"]
