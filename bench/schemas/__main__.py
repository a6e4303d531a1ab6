"""`python -m bench.schemas`: answers by hundreds of schemas, through the whole stack over real llama.cpp.

Each schema is a line of one batch, with `max_tokens` 512; the prompt does not show it: the engine guides.
Every answer that is complete has to be valid: one that is not makes the exit status 1. `--suite` names the
source archive of jsonschema, which has the JSON Schema test suite in it; `make schemas` fetches it.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx2
import jsonschema_rs

from bench.figures import until
from bench.schemas.corpus import Case, generated, published
from cli.stack.options import StackOptions
from cli.stack.servers.llama_options import LlamaOptions, bundled_gguf
from cli.stack.stack import Stack

MAX_TOKENS: Final = 512
_CONTEXT: Final = 4096
_CANCEL_SECONDS: Final = 60.0
_MODEL: Final = "SmolLM2-135M-Instruct.Q4_1"
_ASKED: Final = "Write one short example of JSON, and nothing more."


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a schema.

    Attributes:
        kind: `completed`, `cut`, `refused` or `failed`; `WRONG`: complete and not valid;
            `unfinished`: the time was up.
        cause: of what did not complete, in a few words.
        num_tokens: of the answer.
    """

    case: Case
    kind: str
    cause: str = ""
    num_tokens: int = 0
    text: str = ""


def main() -> None:
    """Ask for all answers, and print what became of them."""
    options = _arguments()
    cases = [
        *(published(options.suite) if options.suite else []),
        *generated(options.generated, seed=options.seed),
    ]
    random.Random(options.seed).shuffle(cases)  # noqa: S311  # so that the first of them are a sample
    cases = cases[options.skip :][: options.first]
    started = time.monotonic()
    outcomes = measured(
        cases,
        first_seed=options.skip,
        temperature=options.temperature,
        slots=options.slots,
        seconds=options.seconds,
    )
    sys.stdout.write(f"{report(outcomes, seconds=time.monotonic() - started)}\n")
    if options.json:
        lines = (vars_of(each) for each in outcomes)
        options.json.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    sys.exit(any(each.kind == "WRONG" for each in outcomes))


def measured(
    cases: Sequence[Case], *, first_seed: int, temperature: float, slots: int, seconds: float
) -> list[Outcome]:
    """Ask for an answer by each schema in one batch of a stack of its own, for so long.

    Each has a seed of its own, counted from `first_seed`.
    """
    lines = "".join(
        json.dumps(_line(at, case, seed=first_seed + at, temperature=temperature)) + "\n"
        for at, case in enumerate(cases)
    )
    with _running(slots) as http:
        sent = {"file": ("in.jsonl", lines.encode()), "purpose": (None, "batch")}
        file_id = http.post("/v1/files", files=sent).raise_for_status().json()["id"]
        asked = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        batch_id = http.post("/v1/batches", json=asked).raise_for_status().json()["id"]

        def ended() -> Any:  # noqa: ANN401  # JSON
            found = http.get(f"/v1/batches/{batch_id}").raise_for_status().json()
            return found if found["status"] in {"completed", "failed", "expired", "cancelled"} else None

        try:
            batch = until(ended, seconds=seconds, every=1.0)
        except TimeoutError:
            http.post(f"/v1/batches/{batch_id}/cancel").raise_for_status()
            batch = until(ended, seconds=_CANCEL_SECONDS, every=1.0)
        replies: dict[int, Mapping[str, Any]] = {}
        for name in ("output_file_id", "error_file_id"):
            if batch[name]:
                text = http.get(f"/v1/files/{batch[name]}/content").raise_for_status().text
                replies |= {int(each["custom_id"]): each for each in map(json.loads, text.splitlines())}
    return [outcome_of(case, replies[at]) for at, case in enumerate(cases) if at in replies]


def outcome_of(case: Case, reply: Mapping[str, Any]) -> Outcome:
    """Read what became of a schema from its line's reply."""
    response = reply["response"]
    if response is None or response["status_code"] != 200:
        error = reply["error"] or response["body"]["error"]
        if "cancel" in str(error["code"]):
            return Outcome(case, "unfinished")
        is_refused = response is not None and response["status_code"] == 400
        return Outcome(case, "refused" if is_refused else "failed", _cause(error))
    [choice] = response["body"]["choices"]
    text, num_tokens = choice["message"]["content"], response["body"]["usage"]["completion_tokens"]
    if choice["finish_reason"] == "length":
        return Outcome(case, "cut", _run_of(text), num_tokens, text)
    is_valid = jsonschema_rs.validator_for(case.schema, offline=True).is_valid(json.loads(text))
    return Outcome(
        case, "completed" if is_valid else "WRONG", "" if is_valid else text[:60], num_tokens, text
    )


def report(outcomes: Sequence[Outcome], *, seconds: float) -> str:
    """Write the share of schemas that complete, and the causes of the others."""
    kinds = dict(Counter(each.kind for each in outcomes))
    outcomes = [each for each in outcomes if each.kind != "unfinished"]
    lines = [f"{len(outcomes)} schemas in {seconds:.0f} s, max_tokens {MAX_TOKENS}: {kinds}"]
    for title, among in (
        ("of all that can be satisfied", [each for each in outcomes if each.case.is_satisfiable]),
        ("of these, accepted", [e for e in outcomes if e.case.is_satisfiable and e.kind != "refused"]),
    ):
        done = sum(each.kind == "completed" for each in among)
        lines.append(f"{title}: {done} of {len(among)} completed and valid, {done / max(1, len(among)):.1%}")
    never = Counter(each.kind for each in outcomes if not each.case.is_satisfiable)
    lines.append(f"that nothing satisfies: {dict(never)}")
    causes = Counter((each.kind, each.cause) for each in outcomes if each.cause)
    lines += [f"{number:5} {kind:9} {cause}" for (kind, cause), number in causes.most_common()]
    return "\n".join(lines)


def vars_of(outcome: Outcome) -> dict[str, object]:
    """Return an outcome as a line of JSON, with its schema and answer."""
    return {
        "name": outcome.case.name,
        "is_satisfiable": outcome.case.is_satisfiable,
        "kind": outcome.kind,
        "cause": outcome.cause,
        "num_tokens": outcome.num_tokens,
        "schema": outcome.case.schema,
        "text": outcome.text,
    }


def _cause(error: Mapping[str, Any]) -> str:
    message = str(error["message"])
    for known in (
        "external",
        "meta-schema",
        "Unresolvable",
        "not a JSON Schema",
        "maximum context",
        "levels deep",
    ):
        if known in message:
            return f"{error['code']}: {message.partition('here: ')[2][:50] or known}"
    return f"{error['code']}: {message[:70]}"


def _run_of(text: str) -> str:
    """Say what a cut answer was writing."""
    end = text[-12:]
    if end.strip("0123456789.-eE+") == "":
        return "digits"
    return "text or structure"


def _line(at: int, case: Case, *, seed: int, temperature: float) -> dict[str, Any]:
    return {
        "custom_id": str(at),
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {
            "model": _MODEL,
            "messages": [{"role": "user", "content": _ASKED}],
            "max_tokens": MAX_TOKENS,
            "temperature": temperature,
            "seed": seed,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "value", "schema": case.schema},
            },
        },
    }


@contextmanager
def _running(slots: int) -> Any:  # noqa: ANN401  # an iterator of a client
    engine = LlamaOptions(gguf=bundled_gguf(), context=_CONTEXT, slots=slots, threads=1)
    with tempfile.TemporaryDirectory() as folder:
        stack = Stack(StackOptions(directory=Path(folder) / "longbatch", engine=engine, api_port=0))
        stack.start()
        try:
            headers = {"Authorization": f"Bearer {stack.urls.api_key}"}
            with httpx2.Client(
                base_url=stack.urls.api_url or "", headers=headers, timeout=60, trust_env=False
            ) as http:
                yield http
        finally:
            stack.stop()
            stack.remove_data()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--suite", type=Path, help="source archive of jsonschema; without it generated ones alone"
    )
    parser.add_argument("--generated", type=int, default=137, help="schemas that are made")
    parser.add_argument("--skip", type=int, default=0, help="leave out so many of all, in their drawn order")
    parser.add_argument("--first", type=int, help="take only so many of them")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--slots", type=int, default=4, help="requests at once")
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--seconds", type=float, default=7200, help="report what is done after so long")
    parser.add_argument("--json", type=Path, help="write each schema and its answer here")
    return parser.parse_args()


if __name__ == "__main__":
    main()
