"""The mixed load: each kind of request in a thread of its own, at random times."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pydoc_data.topics import topics
from random import Random
from typing import Any, Final

import httpx2

from bench.soak.caller import Caller, RefusedError
from bench.soak.journal import Journal, Kind, Promise

# Different texts; each is asked again and again, and must get the same answer each time.
NUM_TEXTS: Final = 48
_REFERENCE: Final = "\n\n".join(topics[name] for name in sorted(topics))
_SIZES: Final = (400, 1200, 3000, 6000, 20_000, 45_000)
_MODEL: Final = "llama-3.1-8b-instruct"
_SUBJECTS: Final = ("quorvex", "brindlom", "tasmvex")
HOOK, ENDPOINT = "/hook", "/endpoint"


def text_of(number: int) -> str:
    """Return a text of the load: mostly short, some long enough to be counted by a worker."""
    size = _SIZES[number % len(_SIZES)]
    start = number * 7919 % (len(_REFERENCE) - size)
    return _REFERENCE[start : start + size]


def max_tokens_of(number: int) -> int:
    """Return the longest answer to a text, the same each time."""
    return (24, 48, 96, 160)[number % 4]


@dataclass
class Load:
    """What the callers share.

    Attributes:
        call: makes a caller.
        journal: takes what was promised.
        hook: URL of the receiver for webhooks of requests.
        seed: of every draw.
        rate: multiplies how often each kind comes.
        faults: what a valid request met.
        chats: answers to callers who waited, by prompt.
    """

    call: Callable[[], Caller]
    journal: Journal
    hook: str
    seed: int
    rate: float = 1.0
    faults: list[str] = field(default_factory=list)
    chats: list[tuple[str, str]] = field(default_factory=list)
    counted: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Send the load for the block; at its end, wait for the requests under way."""
        over = threading.Event()
        threads = [
            threading.Thread(target=self._repeat, args=(kind, every_s, over), name=f"soak-{kind.__name__}")
            for kind, every_s in KINDS.items()
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            over.set()
            for thread in threads:
                thread.join()

    def _repeat(self, kind: "Send", every_s: float, over: threading.Event) -> None:
        random = Random(f"{self.seed} {kind.__name__}")  # noqa: S311  # repeatable
        caller = self.call()
        try:
            number = 0
            while not over.wait(random.expovariate(self.rate / every_s)):
                number += 1
                self.send_one(kind, caller, random, f"{kind.__name__}-{self.seed}-{number}")
        finally:
            caller.close()

    def send_one(self, kind: "Send", caller: Caller, random: Random, name: str) -> None:
        """Send one request of a kind; a refusal is a fault."""
        try:
            kind(self, caller, random, name)
            self.counted[kind.__name__] = self.counted.get(kind.__name__, 0) + 1
        except RefusedError as error:
            self.faults.append(f"{name}: {error}")

    def promise(self, kind: Kind, answer: httpx2.Response, name: str, **fields: Any) -> None:  # noqa: ANN401
        """Keep what an accepted request promised."""
        body = answer.json()
        for each in body["data"] if body["object"] == "list" else [body]:
            self.journal.add(Promise(kind, each["id"], name, path=HOOK, **fields))


Send = Callable[[Load, Caller, Random, str], None]


def _job(number: int, name: str, **fields: object) -> dict[str, object]:
    asked = {"input": text_of(number), "task": "summarize", "max_tokens": max_tokens_of(number)}
    return {**asked, "custom_id": name, **fields}


def native(load: Load, caller: Caller, random: Random, name: str) -> None:
    """Submit one job; look at some while they run, cancel some."""
    number, draw = random.randrange(NUM_TEXTS), random.random()
    is_cancelled = draw < 0.15
    answer = caller.post("/v1/jobs", key=name, json=_job(number, name, webhook_url=load.hook))
    load.promise("job", answer, name, prompt=f"text {number}", is_cancelled=is_cancelled)
    job_id = answer.json()["id"]
    if is_cancelled:
        time.sleep(random.uniform(0, 1.5))
        caller.post(f"/v1/jobs/{job_id}/cancel", key=f"{name}-cancel")
    elif draw < 0.3:
        caller.get(f"/v1/jobs/{job_id}", wait=random.uniform(0.1, 5))


def bulk(load: Load, caller: Caller, random: Random, name: str) -> None:
    """Submit eight jobs in one request."""
    numbers = [random.randrange(NUM_TEXTS) for _ in range(8)]
    lines = [_job(number, f"{name}-{line}", webhook_url=load.hook) for line, number in enumerate(numbers)]
    body = "".join(f"{json.dumps(line)}\n" for line in lines)
    answer = caller.post("/v1/jobs/bulk", key=name, content=body).json()
    if answer["rejected"]:
        raise RefusedError(f"lines refused: {answer['errors'][:3]}")
    for line, (job_id, number) in enumerate(zip(answer["ids"], numbers, strict=True)):
        load.journal.add(Promise("job", job_id, f"{name}-{line}", prompt=f"text {number}", path=HOOK))


def batch(load: Load, caller: Caller, random: Random, name: str) -> None:
    """Upload a file of ten chats, and run it as a batch."""
    numbers = [random.randrange(NUM_TEXTS) for _ in range(10)]
    lines = [
        {"custom_id": f"line-{line}", "method": "POST", "url": "/v1/chat/completions", "body": _chat(number)}
        for line, number in enumerate(numbers)
    ]
    content = "".join(f"{json.dumps(line)}\n" for line in lines)
    sent = {"files": {"file": ("in.jsonl", content.encode())}, "data": {"purpose": "batch"}}
    file = caller.post("/v1/files", key=f"{name}-file", **sent).json()["id"]
    asked = {
        "input_file_id": file,
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
        "webhook_url": load.hook,
    }
    load.promise("batch", caller.post("/v1/batches", key=name, json=asked), name, parts=len(lines))


def summary(load: Load, caller: Caller, random: Random, name: str) -> None:
    """Upload a document of its own, and have it summarized in parts."""
    document = _document(caller, random, name)
    asked = {
        "documents": [document],
        "length": 64,
        "chunk_tokens": 1000,
        "custom_id": name,
        "webhook_url": load.hook,
    }
    load.promise("summary", caller.post("/v1/summaries", key=name, json=asked), name)


def answers(load: Load, caller: Caller, random: Random, name: str) -> None:
    """Upload a document of its own, and ask it questions."""
    document = _document(caller, random, name)
    asked = {
        "documents": [document],
        "questions": [f"What is the {subject}?" for subject in _SUBJECTS],
        "length": 64,
        "custom_id": name,
        "webhook_url": load.hook,
    }
    answer = caller.post("/v1/answers", key=name, json=asked)
    load.promise("answers", answer, name, parts=len(_SUBJECTS))


def chat(load: Load, caller: Caller, random: Random, name: str) -> None:
    """Wait for an answer, on an open request."""
    number = random.randrange(NUM_TEXTS)
    answer = caller.post("/v1/chat/completions", key=name, json=_chat(number)).json()
    (choice,) = answer["choices"]
    load.chats.append((f"chat {number}", choice["message"]["content"]))


def _chat(number: int) -> dict[str, object]:
    messages = [{"role": "user", "content": text_of(number)}]
    # By default a chat is sampled: no two answers need be equal.
    return {
        "model": _MODEL,
        "messages": messages,
        "max_tokens": max_tokens_of(number),
        "temperature": 0,
    }


def _document(caller: Caller, random: Random, name: str) -> str:
    """Upload a text that no other document has."""
    begin = random.randrange(200_000)
    facts = " ".join(f"The {subject} is {random.randrange(1000)} zolts." for subject in _SUBJECTS)
    text = f"Paper {name}\n\n{facts}\n\n{_REFERENCE[begin : begin + random.choice([3000, 9000, 16_000])]}"
    sent = {"content": text.encode(), "headers": {"Content-Type": "text/plain"}}
    path = f"/v1/documents?filename={name}.txt"
    found: str = caller.post(path, key=f"{name}-document", **sent).json()["id"]
    return found


# Each kind, and the mean seconds between two of them: about 1.2 jobs a second.
KINDS: Final[dict[Send, float]] = {
    native: 2,
    bulk: 20,
    batch: 90,
    summary: 120,
    answers: 120,
    chat: 12,
}
