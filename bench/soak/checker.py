"""The checker's looks at the public API: each sees what has ended since, and that nothing ended changed."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from bench.soak.caller import Caller
from bench.soak.journal import Promise
from bench.soak.sightings import TERMINAL, JobEnd, ObjectEnd, Sightings

_PAGE = 100
_PATHS = {"batch": "/v1/batches", "summary": "/v1/summaries", "answers": "/v1/answers"}
_MISSING = 404


class Checker:
    """Reads as any caller can. Look more often than the server's retention."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self.seen = Sightings()

    def look(self, promises: Iterable[Promise]) -> None:
        """Read every job that is listed, and the objects promised that had not ended."""
        self.seen.open.clear()
        by_id = {each.id: each for each in promises}
        listed = set()
        for job in self._listed():
            listed.add(job["id"])
            self._note(job)
        for promise in by_id.values():
            if promise.kind != "job":
                self._look_at(promise)
                continue
            if promise.id not in self.seen.jobs and promise.id not in listed:
                self._look_at_job(promise)  # on a page that was read before it came, or lost
            # Not as soon as its end is seen: a job may be listed before its caller has the promise.
            if promise.id in self.seen.jobs and promise.id not in self.seen.outputs:
                self._read_result(promise, self.seen.jobs[promise.id])

    def read_usage(self) -> None:
        """Read the sums of all days."""
        sums = Counter[str]()
        for day in self._caller.get("/v1/usage").json()["data"]:
            sums.update({f"jobs {state}": number for state, number in day["num_jobs"].items()})
            sums.update({name: day[name] for name in ("prompt_tokens", "completion_tokens")})
        self.seen.usage = dict(sums)

    def _listed(self) -> Iterator[dict[str, Any]]:
        after: dict[str, str] = {}
        while True:
            answer = self._caller.get("/v1/jobs", limit=_PAGE, **after)
            if answer.status_code == _MISSING:
                return  # the last job of the page before was pruned meanwhile; older ones are next
            page = answer.json()
            yield from page["data"]
            if not page["has_more"]:
                return
            after = {"after": page["data"][-1]["id"]}

    def _note(self, job: dict[str, Any]) -> None:
        if job["state"] not in TERMINAL:
            self.seen.open.add(job["id"])
            if job["id"] in self.seen.jobs:
                self.seen.faults.append(f"{job['id']} had ended, and is {job['state']} again")
            return
        end, before = JobEnd.of(job), self.seen.jobs.get(job["id"])
        if before is None:
            self.seen.jobs[job["id"]] = end
        elif before != end:
            self.seen.faults.append(f"{job['id']} changed after its end: {before} became {end}")

    def _look_at_job(self, promise: Promise) -> None:
        answer = self._caller.get(f"/v1/jobs/{promise.id}")
        if answer.status_code == _MISSING:
            self.seen.faults.append(f"{promise.id} was accepted and does not exist")
        else:
            self._note(answer.json())

    def _read_result(self, promise: Promise, end: JobEnd) -> None:
        answer = self._caller.get(f"/v1/jobs/{promise.id}/result")
        if answer.status_code != 200:
            self.seen.faults.append(
                f"{promise.id} is {end.state}, and its result answers {answer.status_code}"
            )
            self.seen.outputs[promise.id] = None
            return
        result = answer.json()
        if result["state"] != end.state:
            self.seen.faults.append(f"{promise.id} is {end.state}, and its result {result['state']}")
        runs = self._caller.get(f"/v1/jobs/{promise.id}/attempts").json()["data"]
        self.seen.runs[promise.id] = [each["outcome"] or "running" for each in runs]
        self.seen.outputs[promise.id] = result["output"]

    def _look_at(self, promise: Promise) -> None:
        if promise.id in self.seen.objects:
            return
        answer = self._caller.get(f"{_PATHS[promise.kind]}/{promise.id}")
        if answer.status_code == _MISSING:
            self.seen.faults.append(f"{promise.id} was accepted and does not exist")
            return
        found = answer.json()
        state = found["status"] if promise.kind == "batch" else found["state"]
        if state not in TERMINAL:
            self.seen.open.add(promise.id)
        elif promise.kind == "batch":
            self.seen.objects[promise.id] = self._batch_end(found)
        elif promise.kind == "answers":
            asked = Counter(each["question"] for each in found["answers"])
            self.seen.objects[promise.id] = ObjectEnd(state, dict(asked))
        else:
            chunks = Counter(str(each["index"]) for each in found["chunks"])
            self.seen.objects[promise.id] = ObjectEnd(state, dict(chunks))

    def _batch_end(self, batch: dict[str, Any]) -> ObjectEnd:
        end = ObjectEnd(batch["status"])
        for file in (batch["output_file_id"], batch["error_file_id"]):
            if file is None:
                continue
            for line in self._caller.get(f"/v1/files/{file}/content").text.splitlines():
                result = json.loads(line)
                name = result["custom_id"]
                end.parts[name] = end.parts.get(name, 0) + 1
                if result["response"] and result["response"]["status_code"] == 200:
                    choice = result["response"]["body"]["choices"][0]
                    end.outputs[name] = choice["message"]["content"]
        return end
