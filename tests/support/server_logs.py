"""The logs of engine servers in the reports of failed tests, which rarely see why an engine failed."""

import subprocess
from pathlib import Path
from typing import Final

import pytest

_NUM_LINES: Final = 60
_servers: list[tuple[Path, "subprocess.Popen[bytes]"]] = []


def register(log: Path, process: "subprocess.Popen[bytes]") -> None:
    """Show this server's log if a test fails that it takes part in."""
    _servers.append((log, process))


def add_to(report: pytest.TestReport) -> None:
    """Add the ends of the logs of all servers that still run, or wrote or died during the test."""
    for log in dict.fromkeys(log for log, process in _servers if _took_part(log, process, report.start)):
        # Without blank lines and Triton's wide tables.
        lines = [line for line in log.read_text(errors="replace").splitlines() if line[:1] not in "|+"]
        report.sections.append((f"End of {log}", "\n".join(lines[-_NUM_LINES:])))


def _took_part(log: Path, process: "subprocess.Popen[bytes]", began: float) -> bool:
    return log.is_file() and (process.poll() is None or log.stat().st_mtime >= began)
