"""The stack's small parts: waits, ports, logs, locks and files."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from cli.local import find_engine
from cli.stack import programs
from cli.stack.api_address import ApiAddress, TlsFiles
from cli.stack.errors import DirectoryInUseError, StackError
from cli.stack.locks import DirectoryLock
from cli.stack.logs import log_tail, open_log, rotate
from cli.stack.options import StackOptions, default_directory
from cli.stack.ports import LOOPBACK, free_port, release, reserve
from cli.stack.ready import Urls
from cli.stack.stack import Stack
from cli.stack.supervised import Backoff
from longbatch.whole_files import write_whole
from tls_support import make_pair

EVERYWHERE = "0.0.0.0"  # noqa: S104  # nothing listens there


def test_the_wait_doubles_up_to_its_ceiling() -> None:
    backoff = Backoff(first=timedelta(seconds=0.5), ceiling=timedelta(seconds=30))
    waits = [backoff.delay(number).total_seconds() for number in range(1, 10)]
    assert waits == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    assert backoff.delay(10_000) == timedelta(seconds=30)


@pytest.fixture
def ports() -> Iterator[list[int]]:
    """Free ports, reserved while the test runs."""
    found = [free_port() for _ in range(100)]
    yield found
    for port in found:
        release(port)


def test_ports_are_never_given_away_twice(ports: list[int]) -> None:
    assert len(set(ports)) == len(ports)


def test_ports_lie_below_the_range_that_the_kernel_gives_to_clients(ports: list[int]) -> None:
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    if lowest <= 11_000:
        pytest.skip("this kernel gives nearly every port to clients")
    assert max(ports) < lowest


def test_a_port_that_somebody_listens_on_is_not_reserved() -> None:
    with socket.create_server((LOOPBACK, 0)) as listening:
        assert not reserve(listening.getsockname()[1])


def test_a_port_that_another_process_reserved_is_not_free_until_that_process_ends() -> None:
    port = free_port()
    release(port)
    script = f"from cli.stack.ports import reserve; print(reserve({port}), flush=True); input()"
    argv = [sys.executable, "-c", script]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "True\n"
        assert not reserve(port)
        other.kill()
        other.wait()
    assert reserve(port)
    release(port)


def test_two_stacks_that_start_at_the_same_time_choose_two_ports(tmp_path: Path) -> None:
    stacks = [Stack(StackOptions(directory=tmp_path / name, parts=frozenset())) for name in "ab"]
    with ExitStack() as running:
        urls = [running.enter_context(stack) for stack in stacks]
        ports = [stack._api and stack._api.port for stack in urls]
    assert None not in ports
    assert len(set(ports)) == len(ports)


@pytest.mark.parametrize("file", ["lock", "ready.json"])
def test_a_file_that_cannot_be_written_is_named_and_ends_the_stack(tmp_path: Path, file: str) -> None:
    """Not even root writes to /proc."""
    nowhere = Path("/proc")
    directory = nowhere if file == "lock" else tmp_path
    stack = Stack(StackOptions(directory=directory, ready_file=nowhere / "ready.json", parts=frozenset()))
    with pytest.raises(StackError, match=f"/proc/.*{file}.*: No such file"):
        stack.start()
    lock = DirectoryLock(tmp_path)
    lock.acquire()
    lock.release()


def test_metrics_are_those_of_the_triton_that_the_url_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGBATCH_TRITON__METRICS_URL", "http://another:8002/metrics")
    for url in ("gpu:8001", "grpc://gpu:8001"):
        assert find_engine(url).triton.metrics_url is None
        side = find_engine(url, metrics_url="http://gpu:8002/metrics", model="ensemble")
        assert side.triton.metrics_url == "http://gpu:8002/metrics"
        assert side.triton.model_name == "ensemble"


def test_a_user_without_a_home_is_told_to_choose_a_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", fail)
    with pytest.raises(StackError, match="--data-dir"):
        default_directory({})


def test_three_earlier_logs_are_kept(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "api.log"
    for number in range(6):
        rotate(log)
        with open_log(log) as file:
            file.write(f"run {number}\n".encode())
    kept = {path.name: path.read_text() for path in log.parent.iterdir()}
    assert kept == {
        "api.log": "run 5\n",
        "api.log.1": "run 4\n",
        "api.log.2": "run 3\n",
        "api.log.3": "run 2\n",
    }


def test_a_log_is_readable_by_its_owner_alone(tmp_path: Path) -> None:
    open_log(tmp_path / "logs" / "api.log").close()
    assert (tmp_path / "logs" / "api.log").stat().st_mode & 0o777 == 0o600


def test_the_tail_of_a_log_names_its_place_and_ends_with_its_last_line(tmp_path: Path) -> None:
    log = tmp_path / "api.log"
    log.write_text("".join(f"line {number}\n" for number in range(5000)))
    lines = log_tail(log, num_lines=2).splitlines()
    assert lines == ["", f"The end of {log}:", "  line 4998", "  line 4999"]
    assert not log_tail(tmp_path / "missing.log")


def test_a_private_file_is_whole_and_leaves_no_other(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    write_whole(path, "first")
    write_whole(path, "second")
    assert path.read_text() == "second"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_the_error_for_a_directory_in_use_names_its_holder(tmp_path: Path) -> None:
    first, second = DirectoryLock(tmp_path), DirectoryLock(tmp_path)
    first.acquire()
    first.acquire()
    with pytest.raises(DirectoryInUseError, match=f"process {os.getpid()};.*--data-dir"):
        second.acquire()
    first.release()
    second.acquire()
    second.release()


def test_the_default_directory_follows_the_desktop_standard() -> None:
    assert default_directory({"XDG_DATA_HOME": "/data"}) == Path("/data/longbatch")
    assert default_directory({}) == Path.home() / ".local/share/longbatch"


def test_a_part_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown parts: redsi"):
        StackOptions(directory=tmp_path, parts=frozenset({"redsi"}))


def test_webhooks_may_go_to_this_machine_unless_the_environment_decides() -> None:
    name = "LONGBATCH_WEBHOOKS__ALLOWED_HOSTS"
    found = programs.environment({}, Urls(), api=ApiAddress(8080), time_scale=1)
    assert json.loads(found[name]) == ["127.0.0.1", "localhost", "::1"]
    for chosen in ("[]", '["hooks.internal"]'):
        found = programs.environment({name: chosen}, Urls(), api=ApiAddress(8080), time_scale=1)
        assert found[name] == chosen


@pytest.mark.parametrize("host", [EVERYWHERE, "::", "192.0.2.7"])
def test_webhooks_of_a_stack_on_the_network_do_not_go_to_this_machine(host: str) -> None:
    found = programs.environment({}, Urls(), api=ApiAddress(8080, host), time_scale=1)
    assert "LONGBATCH_WEBHOOKS__ALLOWED_HOSTS" not in found
    assert found["LONGBATCH_API__HOST"] == host


@pytest.mark.parametrize(
    ("host", "names", "url"),
    [
        ("127.0.0.1", None, "http://127.0.0.1:8080"),
        ("::1", None, "http://[::1]:8080"),
        (EVERYWHERE, ["box.example.com"], "https://box.example.com:8080"),
        ("::", ["*.example.com", "box.example.com"], "https://box.example.com:8080"),
        ("192.0.2.7", ["box.example.com", "192.0.2.7"], "https://192.0.2.7:8080"),
        (EVERYWHERE, ["*.example.com"], "https://127.0.0.1:8080"),
        (EVERYWHERE, ["*.example.com", "2001:db8::7"], "https://[2001:db8::7]:8080"),
    ],
)
def test_the_api_s_url_has_a_name_that_its_certificate_is_valid_for(
    tmp_path: Path, host: str, names: list[str] | None, url: str
) -> None:
    tls = TlsFiles(*make_pair(tmp_path, *names)) if names else None
    assert ApiAddress(8080, host, tls).url == url


def test_settings_for_tls_are_the_stack_s_own_alone(tmp_path: Path) -> None:
    certificate, key = make_pair(tmp_path, "box.example.com")
    base = {"LONGBATCH_API__TLS_CERTIFICATE": "/other.pem", "LONGBATCH_API__TLS_KEY": "/other.key"}
    plain = programs.environment(base, Urls(), api=ApiAddress(8080), time_scale=1)
    assert not base.keys() & plain.keys()
    api = ApiAddress(8080, tls=TlsFiles(certificate, key))
    found = programs.environment(base, Urls(), api=api, time_scale=1)
    assert [found[name] for name in base] == [str(certificate), str(key)]


def test_an_encrypted_key_is_refused_and_not_asked_about(tmp_path: Path) -> None:
    certificate, key = make_pair(tmp_path, "box.example.com")
    opened = load_pem_private_key(key.read_bytes(), None)
    sealed = BestAvailableEncryption(b"secret")
    key.write_bytes(opened.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, sealed))
    with pytest.raises(StackError, match="must be PEM files: a certificate and its unencrypted key"):
        TlsFiles(certificate, key)
