"""A local stack for loads that are judged: slow enough that what happens to it hits work in flight."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import httpx2

from cli.stack.options import StackOptions
from cli.stack.servers.engine_options import EngineOptions
from jobs.prompts.tokenizer_files import tokenizer_directory

# A lost worker's jobs wait as long.
LEASE_S: Final = 9


def options(directory: Path, environment: Mapping[str, str]) -> StackOptions:
    """Return the options of a stack in this directory, without this shell's settings.

    Args:
        directory: for its data.
        environment: settings that differ from the defaults.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("LONGBATCH_")}
    leases = {"LONGBATCH_JOBS__LEASE_SECONDS": str(LEASE_S), "LONGBATCH_JOBS__RENEW_SECONDS": "3"}
    hosts = {"LONGBATCH_WEBHOOKS__ALLOWED_HOSTS": '["127.0.0.1"]'}
    return StackOptions(
        directory=directory,
        api_port=0,
        engine=EngineOptions(tokenizer_dir=tokenizer_directory(None), time_scale=2, tokens_per_response=4),
        environment={**inherited, **leases, **hosts, **environment},
    )


def subscribe(api_url: str, key: str, url: str) -> str:
    """Register an endpoint for webhooks, and return the secret that signs them."""
    answer = httpx2.post(
        f"{api_url}/v1/webhook_endpoints",
        json={"url": url},
        headers={"Authorization": f"Bearer {key}"},
        trust_env=False,
        timeout=30,
    )
    secret: str = answer.raise_for_status().json()["secret"]
    return secret
