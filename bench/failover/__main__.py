"""`python -m bench.failover`: the primary database dies under load, its standby is promoted, and a verdict.

The exit status is 1 if anything was lost, doubled or contradicted itself. With `--asynchronous` commits do
not wait for the standby, which hears nothing of the primary's last seconds: then it must be 1.
"""

import argparse
import secrets
import tempfile
from pathlib import Path

from bench.failover.run import Plan, fail_over
from bench.soak.judged import conclude, say
from jobs import open_files


def main() -> None:
    """Fail over, and print the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.failover", description=__doc__)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**31))
    parser.add_argument("--before", type=float, default=60, help="seconds of load before the primary dies")
    parser.add_argument("--after", type=float, default=60, help="seconds of load after the promotion")
    parser.add_argument("--rate", type=float, default=3, help="1 is about 1.2 jobs a second")
    parser.add_argument(
        "--asynchronous", action="store_true", help="what is accepted last is lost: does the judge see it?"
    )
    asked = parser.parse_args()
    open_files.raise_limit()
    plan = Plan(
        asked.seed,
        before_s=asked.before,
        after_s=asked.after,
        rate=asked.rate,
        drain_s=60 if asked.asynchronous else 300,
        is_synchronous=not asked.asynchronous,
    )
    say(f"seed {plan.seed}")
    with tempfile.TemporaryDirectory(prefix="longbatch-failover-", ignore_cleanup_errors=True) as directory:
        Path(directory).chmod(0o711)  # under root, Postgres runs as another user
        report = fail_over(plan, Path(directory), say=say)
    conclude(report)


if __name__ == "__main__":
    main()
