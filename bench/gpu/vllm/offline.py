"""`python offline.py OPTIONS.json OUT LIST.json...`: vLLM's own batch inference, `LLM.generate` on a list.

Lists are files that `python -m bench.gpu.vllm export` writes. Options are keyword arguments of `vllm.LLM`.
It runs in vLLM's Python and imports nothing of Longbatch; one line of JSON for each list.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any, Final

END_ID: Final = 128_009
_WARM_UP: Final = (8000, 500, 3000, 700)  # tokens of prompts before the first list


def _counters(llm: Any) -> dict[str, float]:  # noqa: ANN401  # vLLM is not installed where types are checked
    found: dict[str, float] = {}
    for metric in llm.get_metrics():
        value = getattr(metric, "value", None)
        if value is not None:
            found[metric.name] = found.get(metric.name, 0) + value
    return found


def main() -> None:
    """Load the model once and run each list from an empty prefix cache."""
    from vllm import LLM, SamplingParams  # its own Python alone has it

    options, out, *lists = sys.argv[1:]
    llm = LLM(disable_log_stats=False, **json.loads(Path(options).read_text()))
    warm = [{"prompt_token_ids": list(range(1000, 1000 + length))} for length in _WARM_UP]
    llm.generate(warm, SamplingParams(temperature=0, max_tokens=8), use_tqdm=False)
    for name in lists:
        listed = json.loads(Path(name).read_text())
        llm.reset_prefix_cache()
        prompts = [{"prompt_token_ids": each["ids"]} for each in listed["prompts"]]
        params = [
            SamplingParams(temperature=0, max_tokens=each["max_tokens"], stop_token_ids=[END_ID])
            for each in listed["prompts"]
        ]
        before = _counters(llm)
        began = time.monotonic()
        answers = llm.generate(prompts, params, use_tqdm=False)
        seconds = time.monotonic() - began
        after = _counters(llm)
        wrong = sum(
            len(answer.outputs[0].token_ids) != each["output_tokens"]
            for answer, each in zip(answers, listed["prompts"], strict=True)
        )
        record = {
            "listing": listed["listing"],
            "seconds": seconds,
            "wrong_length": wrong,
            "counters": {name: after[name] - before.get(name, 0) for name in after},
        }
        with Path(out).open("a") as file:
            file.write(json.dumps(record) + "\n")
        print(json.dumps({**record, "counters": None}), flush=True)  # noqa: T201  # a command prints


if __name__ == "__main__":
    main()
