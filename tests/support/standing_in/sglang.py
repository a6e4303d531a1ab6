"""What SGLang's own server was recorded to send, and the same of any other server.

`make test-sglang` compares the record with the real server, `make test` the stand-in with the record.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import httpx2

RECORD: Final = Path(__file__).with_name("sglang.json")
_CONTEXT: Final = 131_072
# Of `meta_info`, what differs each time.
_TIMES: Final = ("_ts", "latency", "_time", "throughput")
_CARD: Final = ("id", "owned_by", "parent")
_INFO: Final = (
    *("context_length", "max_running_requests", "max_total_num_tokens", "max_req_input_len", "page_size"),
    *("incremental_streaming_output", "enable_deterministic_inference"),
)


def bodies() -> dict[str, dict[str, Any]]:
    """Build the requests, by what they are about."""
    asked = {
        "whole": ([5, 6], {"max_new_tokens": 3}, {}),
        "continued": ([5, 1000, 1001], {"max_new_tokens": 2}, {}),
        "scored": ([5, 6], {"max_new_tokens": 1}, {"return_logprob": True, "top_logprobs_num": 2}),
        "bad value": ([5, 6], {"max_new_tokens": 3, "top_p": 5}, {}),
        "empty": ([], {"max_new_tokens": 3}, {}),
        "too long": ([5] * _CONTEXT, {"max_new_tokens": 3}, {}),
        "nearly too long": ([5] * (_CONTEXT - 6), {"max_new_tokens": 3}, {}),
    }
    return {
        name: {"rid": f"recorded-{name}", "input_ids": ids, "sampling_params": sampling, "stream": True}
        | more
        for name, (ids, sampling, more) in asked.items()
    }


def names() -> list[str]:
    """List what is recorded."""
    return [*bodies(), "abort", "card", "model_info", "types of server_info", "types of a rank's state"]


def sent_by(url: str) -> dict[str, Any]:
    """Ask a server everything. Returns its events and documents without what differs each time."""
    with httpx2.Client(base_url=url, timeout=60) as http:
        found: dict[str, Any] = {name: _events(http, body) for name, body in bodies().items()}
        card = http.get("/v1/models").json()["data"][0]
        info = http.get("/server_info").json()
        state = info["internal_states"][0]
        abort = http.post("/abort_request", json={"rid": "nosuch"})
        is_generation = http.get("/model_info").json()["is_generation"]
    return found | {
        "abort": abort.status_code,
        "card": {name: card[name] for name in _CARD},
        "model_info": {"is_generation": is_generation},
        "types of server_info": {name: type(info[name]).__name__ for name in _INFO},
        "types of a rank's state": {
            name: type(state[name]).__name__ for name in ("effective_max_running_requests_per_dp",)
        },
    }


def recorded() -> dict[str, Any]:
    """Read the record."""
    found: dict[str, Any] = json.loads(RECORD.read_text())
    return found


def _events(http: httpx2.Client, body: Mapping[str, Any]) -> dict[str, Any]:
    answer = http.post("/generate", json=body)
    sent = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    return {
        "status": answer.status_code,
        "type": answer.headers["Content-Type"].partition(";")[0],
        "events": [each if each == "[DONE]" else _lasting(json.loads(each)) for each in sent],
    }


def _lasting(event: dict[str, Any]) -> dict[str, Any]:
    """Leave out the text, of which the stand-in says none, and what differs each time."""
    if "meta_info" not in event:
        return event
    about = {name: value for name, value in event["meta_info"].items() if not name.endswith(_TIMES)}
    return event | {"text": "", "meta_info": about}
