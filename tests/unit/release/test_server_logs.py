"""The report of a failed test shows how the logs of its engine servers end."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

import server_logs


def started(program: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE)


def report_since(began: float) -> pytest.TestReport:
    return pytest.TestReport("a_test", ("", None, ""), {}, "failed", "its error", "call", start=began)


def test_servers_that_run_or_wrote_since_the_test_began_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_logs, "_servers", [])
    running, ended = started("input()"), started("")
    ended.wait()
    for name, process in (("silent", running), ("over", ended)):
        (tmp_path / name).write_text(f"| a table |\n{name}: it crashed\n")
        server_logs.register(tmp_path / name, process)
    report, later = report_since(time.time() - 60), report_since(time.time() + 60)
    server_logs.add_to(report)
    server_logs.add_to(later)
    running.communicate(b"\n")
    silent = (f"End of {tmp_path / 'silent'}", "silent: it crashed")
    assert report.sections == [silent, (f"End of {tmp_path / 'over'}", "over: it crashed")]
    assert later.sections == [silent]
