"""Longbatch as a contender: jobs submitted in bulk to a stack that already feeds the engine."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx2

from bench.stand.documents import Prompt
from bench.stand.ledger import Ledger
from bench.stand.stand import job_line


@dataclass(frozen=True, slots=True)
class Verdict:
    """The state of the tables after a run.

    Attributes:
        began: monotonic time at which submission began.
        ended: monotonic time at which the last result was stored, or at which patience ended.
        submit_s: of all jobs, in one bulk request.
        first_claim_s: from the beginning of submission to the first claim.
        last_claim_s: from the beginning of submission until every job had been claimed once.
        lost: jobs that ended without their one result.
        twice: completed runs beyond one for each job.
        wrong_length: results of another length than their mark says.
        attempts: runs by outcome.
    """

    began: float
    ended: float
    submit_s: float
    first_claim_s: float
    last_claim_s: float
    unfinished: int
    lost: int
    twice: int
    wrong_length: int
    attempts: dict[str, int]


class Product:
    """A running stack, found by its `ready.json`."""

    def __init__(self, ready: Path) -> None:
        found = json.loads(ready.read_text())
        self.ready = ready
        self.ledger = Ledger(found["database_url"])
        self.http = httpx2.Client(
            base_url=found["api_url"],
            headers={"Authorization": f"Bearer {found['api_key']}"},
            timeout=600,
            trust_env=False,
        )

    def run(self, prompts: Sequence[Prompt], *, patience: float = 600) -> Verdict:
        """Run the list from an empty queue to its last stored result."""
        self.ledger.clear()
        time.sleep(0.5)
        began = time.monotonic()
        ids = self.submit(prompts)
        submit_s = time.monotonic() - began
        self.wait(began + patience)
        verdict = self.verdict(ids, prompts, began=began, submit_s=submit_s)
        if verdict.unfinished:
            self.cancel(ids)
        return verdict

    def submit(self, prompts: Sequence[Prompt]) -> list[str]:
        """Submit all prompts in one bulk request, and return the jobs' ids.

        Raises:
            ValueError: a job was refused.
        """
        lines = (f"{job_line(each)}\n".encode() for each in prompts)
        answer = self.http.post("/v1/jobs/bulk", content=lines).raise_for_status().json()
        if answer["rejected"]:
            raise ValueError(f"refused: {answer['errors'][:3]}")
        ids: list[str] = answer["ids"]
        return ids

    def cancel(self, ids: Sequence[str]) -> None:
        """Cancel all jobs that did not end, so that the next contender finds an idle engine."""
        for each in ids:
            self.http.post(f"/v1/jobs/{each}/cancel")  # one that has ended is refused

    def wait(self, until: float) -> None:
        """Wait until all jobs ended or the monotonic time has come."""
        while self.ledger.unfinished() and time.monotonic() < until:
            time.sleep(0.2)

    def verdict(
        self, ids: Sequence[str], prompts: Sequence[Prompt], *, began: float, submit_s: float
    ) -> Verdict:
        """Compare the tables with the list."""
        unfinished = self.ledger.unfinished()
        outputs = self.ledger.outputs(ids)
        attempts = {
            str(outcome): int(number)
            for outcome, number in self.ledger.database.execute(
                "SELECT outcome, count(*) FROM attempts GROUP BY outcome"
            )
        }
        is_over = unfinished == 0
        starts = [each - began for each in self.ledger.starts(ids)] if is_over else [0.0]
        return Verdict(
            began=began,
            ended=self.ledger.last_end(ids) if is_over else time.monotonic(),
            submit_s=round(submit_s, 2),
            first_claim_s=round(min(starts), 2),
            last_claim_s=round(max(starts), 2),
            unfinished=unfinished,
            lost=outputs.count(0) - unfinished,
            twice=max(0, attempts.get("completed", 0) - len(ids)),
            wrong_length=sum(
                0 < got != each.answer_tokens for got, each in zip(outputs, prompts, strict=True)
            ),
            attempts=attempts,
        )

    def pid(self, process: str) -> int | None:
        """Return the id of one of the stack's processes; `None` while it is down."""
        found: int | None = json.loads(self.ready.read_text())["pids"][process]
        return found
