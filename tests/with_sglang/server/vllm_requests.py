"""Check requests against vLLM's own model of `/v1/completions`.

Reads a JSON list of bodies from its input. Writes what is wrong with each: an error, or unknown fields.
"""

import json
import sys
from pathlib import Path

import absent
from pydantic import ValidationError

# SGLang would find vLLM among its own packages, and use it.
sys.path.append(str(Path(sys.prefix) / "vllm"))
absent.install()

from vllm.entrypoints.openai.completion.protocol import CompletionRequest  # noqa: E402  # after the stubs
from vllm.exceptions import VLLMValidationError  # noqa: E402


def fault(body: dict[str, object]) -> str:
    """Return what is wrong with a body; empty if nothing is. vLLM ignores a field that it does not know."""
    unknown = sorted(set(body) - set(CompletionRequest.model_fields))
    if unknown:
        return f"unknown: {', '.join(unknown)}"
    try:
        CompletionRequest.model_validate(body).to_sampling_params(body["max_tokens"], {})
    except (ValidationError, ValueError, VLLMValidationError) as error:
        return str(error)
    return ""


if __name__ == "__main__":
    json.dump([fault(each) for each in json.load(sys.stdin)], sys.stdout)
