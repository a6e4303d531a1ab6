"""`python -m bench.peers.direct`: a script that sends a list of prompts to Triton and keeps nothing."""

import argparse
import json
import sys
import time
from pathlib import Path

from bench.peers import manifest
from bench.peers.engine_client import EngineClient


def main() -> None:
    """Send all requests, at once or one after the other, and print a JSON report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="Triton's gRPC address")
    parser.add_argument("manifest", type=Path)
    parser.add_argument("--one-at-a-time", action="store_true")
    asked = parser.parse_args()
    items = manifest.read(asked.manifest)
    prompts = [(item.load(), item.limit) for item in items]
    num_tokens: dict[str, int] = {}
    ended: dict[str, float] = {}
    with EngineClient(asked.url) as engine:
        began = time.monotonic()
        if asked.one_at_a_time:
            for number, (ids, limit) in enumerate(prompts):
                num_tokens[str(number)] = len(engine.ask(ids, limit, request_id=str(number))[0])
                ended[str(number)] = time.monotonic()
        else:
            for number, (ids, limit) in enumerate(prompts):
                engine.send(ids, limit, request_id=str(number))
            while len(ended) < len(prompts):
                request_id, ids_, is_final = engine.next()
                num_tokens[request_id] = num_tokens.get(request_id, 0) + len(ids_)
                if is_final:
                    ended[request_id] = time.monotonic()
    counts = [num_tokens[str(number)] for number in range(len(items))]
    json.dump({"began": began, "ended": max(ended.values()), "tokens": counts}, sys.stdout)


if __name__ == "__main__":
    main()
