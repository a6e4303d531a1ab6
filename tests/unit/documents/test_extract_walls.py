"""A process that a document has taken over reaches nothing: not its parent's secrets, files or servers."""

import json
import os
import platform
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import zstandard

from jobs.settings import DocumentSettings
from jobs.states.document import DocumentErrorCode
from worker.documents.extractor import unpack
from worker.documents.sandbox import (
    AttachedFile,
    ExtractedMessage,
    Extraction,
    ExtractionFailure,
    parse_output,
)

_ROOT = Path(__file__).resolve().parents[3]
_CONFINED = """
import ctypes, os, signal, socket, subprocess, sys, threading
from worker.extract.confine import fork_confined
from worker.extract.draft import ExtractionLimits

libc = ctypes.CDLL(None, use_errno=True)
outer, port, secret, pathed = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
code = fork_confined(ExtractionLimits(2**30, 10, 1, 1), parent=os.getppid())
if code is not None:
    sys.exit(code)

def attempt(name, act):
    try:
        act()
    except OSError:
        return
    print(name)

def call(function, *arguments):
    if getattr(libc, function)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), function)

def fork():
    if os.fork() == 0:
        os._exit(0)

"""
_REACHES = (
    _CONFINED
    + """
attempt("environment", lambda: open(f"/proc/{outer}/environ").read())
attempt("file", lambda: open(secret).read())
attempt("folder", lambda: os.listdir(os.path.dirname(secret)))
attempt("connection", lambda: socket.create_connection(("127.0.0.1", port)))
attempt("signal", lambda: os.kill(outer, 0))
attempt("new file", lambda: os.close(os.open(secret + ".new", os.O_CREAT | os.O_WRONLY)))
attempt("removal", lambda: os.unlink(secret))
import decimal, email.message, lxml.etree
print("end")
"""
)
_CALLS = (
    _CONFINED
    + """
attempt("UDP", lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b"a secret", ("127.0.0.1", port)))
attempt("TCP", lambda: socket.create_connection(("127.0.0.1", port)))
attempt("socket with a path", lambda: socket.socket(socket.AF_UNIX).connect(pathed))
attempt("pair of sockets", socket.socketpair)
attempt("netlink", lambda: socket.socket(socket.AF_NETLINK))
attempt("fork", fork)
attempt("vfork and exec", lambda: subprocess.run(["true"]))
attempt("spawn", lambda: os.posix_spawn("/bin/true", ["true"], {}))
attempt("exec", lambda: os.execv("/bin/true", ["true"]))
attempt("exec of a descriptor", lambda: call("syscall", 322, 0, b"/bin/true", None, None, 0))
attempt("ptrace", lambda: call("ptrace", 16, outer, 0, 0))
attempt("others' memory", lambda: call("process_vm_readv", outer, None, 0, None, 0, 0))
attempt("others' limits", lambda: call("prlimit", outer, 0, None, None))
attempt("others' descriptors", lambda: os.pidfd_open(outer))
attempt("io_uring", lambda: call("syscall", 425, 1, ctypes.create_string_buffer(120)))
attempt("keys", lambda: call("syscall", 250, 0, -3, 1))
attempt("namespace", lambda: call("unshare", 0x10000000))
attempt("mode of a file", lambda: os.chmod(secret, 0o777))
attempt("owner of a file", lambda: os.chown(secret, os.getuid(), -1))
attempt("signal", lambda: os.kill(outer, 0))
attempt("signal to a thread", lambda: call("syscall", 234, outer, outer, 0))
attempt("group of its own", os.setsid)
attempt("life of its own", lambda: call("prctl", 1, 0, 0, 0, 0))
attempt("root", lambda: os.setuid(0))
attempt("call that is newer than the filter", lambda: call("syscall", 463, 0, 0, 0, 0, 0))
attempt("call of 32-bit pointers", lambda: call("syscall", 0x40000000 + 39))
worked = []
threads = [threading.Thread(target=worked.append, args=(number,)) for number in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(worked), "threads")
"""
)
_IS_ROOT = (
    _CONFINED
    + """
sets = (ctypes.c_uint32 * 6)()
call("capget", (ctypes.c_uint32 * 2)(0x20080522, 0), sets)
reads_files = 1 << 2  # where its code is in a folder of root's own
print(os.getresuid(), os.getresgid(), os.getgroups(), [each & ~reads_files for each in sets])
attempt("write to a file of root's", lambda: os.open("/etc/passwd", os.O_WRONLY))
"""
)
_needs_landlock = pytest.mark.skipif(
    subprocess.run(  # ours
        [sys.executable, "-c", "import ctypes; exit(ctypes.CDLL(None).syscall(444, None, 0, 1) < 6)"],
        check=False,
    ).returncode
    != 0,
    reason="the kernel has no Landlock that knows of signals",
)


def confined(script: str, folder: Path) -> str:
    """What the script wrote after it was confined, beside a file and servers of ours."""
    secret = folder / "secret"
    secret.write_text("a password")
    pathed = folder / "socket"
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX) as with_path,
        socket.socket(type=socket.SOCK_DGRAM) as datagrams,
    ):
        port = server.getsockname()[1]
        with_path.bind(str(pathed))
        with_path.listen()
        datagrams.bind(("127.0.0.1", port))
        done = subprocess.run(  # ours
            [sys.executable, "-c", script, str(os.getpid()), str(port), str(secret), str(pathed)],
            cwd=_ROOT,
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        )
        datagrams.setblocking(False)
        with pytest.raises(BlockingIOError):
            datagrams.recv(100)
    return done.stdout


@_needs_landlock
def test_a_confined_process_reaches_nothing_but_its_own_code(tmp_path: Path) -> None:
    assert confined(_REACHES, tmp_path) == "end\n"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers of its calls are those of x86-64")
def test_a_confined_process_opens_no_socket_and_starts_no_process_but_threads(tmp_path: Path) -> None:
    assert confined(_CALLS, tmp_path) == "8 threads\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give root up")
def test_a_confined_process_of_root_s_is_nobody(tmp_path: Path) -> None:
    nobody = (65534, 65534, 65534)
    assert confined(_IS_ROOT, tmp_path) == f"{nobody} {nobody} [] {[0] * 6}\n"


def test_what_it_packed_cannot_swell_in_the_worker() -> None:
    def pack(raw: bytes, *, says_length: bool = True) -> bytes:
        return zstandard.ZstdCompressor(write_content_size=says_length).compress(raw)

    assert unpack(pack("Grüße".encode()), most_bytes=20) == "Grüße"
    bomb = bytes(2**20)
    for body in (pack(bomb), pack(bomb, says_length=False), pack(b"a") + pack(bomb), pack(b"a")[:-1], b""):
        with pytest.raises(zstandard.ZstdError):
            unpack(body, most_bytes=20)


def told(body: bytes = b"text", **fields: Any) -> bytes:  # noqa: ANN401  # any JSON
    """What a process writes that says this of its text, or of why there is none."""
    described = json.dumps(fields).encode()
    return struct.pack(">Q", len(described)) + described + body


@pytest.mark.parametrize("character", ["\0", "\ud800"])
def test_its_output_holds_no_text_that_cannot_be_stored(character: str) -> None:
    good: dict[str, Any] = {
        "num_chars": 4,
        "pages": None,
        "language": "en",
        "title": "A title",
        "warnings": [],
        "size": 4,
        "attachments": [{"name": "a", "size": 2}, {"name": "b", "size": 1}],
    }
    settings = DocumentSettings()
    body = b"textxyz"
    attached = (AttachedFile("a", b"xy"), AttachedFile("b", b"z"))
    whole = Extraction(ExtractedMessage.model_validate(good), b"text", attached)
    assert parse_output(told(body, **good), settings) == whole
    bad = f"a{character}b"
    warned = {"code": "pages_without_text", "message": bad}
    for output in (
        told(body, **good | {"title": bad}),
        told(body, **good | {"warnings": [warned]}),
        told(body, **good | {"attachments": [{"name": bad, "size": 3}]}),
        told(body, **good | {"attachments": [{"name": "a", "size": 10**15}]}),
        told(body, **good | {"attachments": []}),
        told(body, **good | {"size": -1, "attachments": [{"name": "a", "size": 8}]}),
        told(b"", code="document_corrupt", message=bad),
    ):
        found = parse_output(output, settings)
        assert isinstance(found, ExtractionFailure)
        assert (found.code, found.message) == (
            DocumentErrorCode.CORRUPT,
            "The program that reads the document returned invalid output.",
        )
