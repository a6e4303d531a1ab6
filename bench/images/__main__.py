"""`python -m bench.images`: the services of docker-compose.yml run as containers and are killed; a verdict.

`make prove-images` starts it where podman is. The exit status is 1 if anything was lost, doubled or
contradicted itself.
"""

import argparse
import secrets
import tempfile
from pathlib import Path

from bench.images.run import Plan, prove
from bench.soak.judged import conclude, say


def main() -> None:
    """Run once, and print the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.images", description=__doc__)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**31))
    parser.add_argument("--rounds", type=int, default=1, help="how often each process is killed")
    parser.add_argument("--rate", type=float, default=1, help="1 is about 1.2 jobs a second")
    asked = parser.parse_args()
    say(f"seed {asked.seed}")
    with tempfile.TemporaryDirectory(prefix="longbatch-images-") as directory:
        plan = Plan(asked.seed, rounds=asked.rounds, rate=asked.rate)
        report = prove(plan, Path(directory), say=say)
    conclude(report)


if __name__ == "__main__":
    main()
