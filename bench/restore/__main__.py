"""`python -m bench.restore`: lose a database of a million jobs, and restore it to a moment.

Postgres' log is archived, the base backup is older than a tenth of the jobs, and the commands are those of
docs/operations.md. Jobs accepted before the moment must be there and end once, whatever happened to them
afterwards; later ones must not. The exit status is 1 otherwise.
"""

import argparse
import json
import os
import tempfile
from pathlib import Path

from bench.restore.run import Plan, prove
from bench.soak.judged import say
from jobs import open_files


def main() -> None:
    """Prove it, and print the figures."""
    asked = _arguments()
    open_files.raise_limit()
    with tempfile.TemporaryDirectory(prefix="longbatch-restore-", ignore_cleanup_errors=True) as directory:
        Path(directory).chmod(0o711)  # under root, Postgres runs as another user
        report = prove(Plan(num_jobs=asked.jobs), Path(directory), say=say)
    figures = report.figures() | {"load_average": round(os.getloadavg()[0], 1)}
    print(json.dumps(figures, indent=1))  # noqa: T201
    if report.faults:
        raise SystemExit(1)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.restore", description=__doc__)
    parser.add_argument("--jobs", type=int, default=Plan().num_jobs, help="in the database")
    return parser.parse_args()


if __name__ == "__main__":
    main()
