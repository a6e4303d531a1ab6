"""A process that a document has taken over reaches nothing: not its parent's secrets, files or servers."""

import json
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard

from jobs.document_states import Fault
from jobs.settings import DocumentSettings
from worker.extractor import unpack
from worker.sandbox import Extracted, Refusal, understand

_ROOT = Path(__file__).resolve().parents[2]
_ATTEMPT = """
import os, socket, sys
from worker.extract.confine import fork_confined
from worker.extract.draft import Limits

code = fork_confined(Limits(2**30, 10, 1, 1), parent=os.getppid())
if code is not None:
    sys.exit(code)

def attempt(name, act):
    try:
        act()
    except OSError:
        return
    print(name)

outer, port, secret = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
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


@pytest.mark.skipif(
    subprocess.run(  # ours
        [sys.executable, "-c", "import ctypes; exit(ctypes.CDLL(None).syscall(444, None, 0, 1) < 6)"],
        check=False,
    ).returncode
    != 0,
    reason="the kernel has no Landlock that knows of signals",
)
def test_a_confined_process_reaches_nothing_but_its_own_code(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a password")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        done = subprocess.run(  # ours
            [sys.executable, "-c", _ATTEMPT, str(os.getpid()), str(port), str(secret)],
            cwd=_ROOT,
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        )
    assert done.stdout == "end\n"


def test_what_it_packed_cannot_swell_in_the_worker() -> None:
    def pack(raw: bytes, *, says_length: bool = True) -> bytes:
        return zstandard.ZstdCompressor(write_content_size=says_length).compress(raw)

    assert unpack(pack("Grüße".encode()), most_bytes=20) == "Grüße"
    bomb = bytes(2**20)
    for body in (pack(bomb), pack(bomb, says_length=False), pack(b"a") + pack(bomb), pack(b"a")[:-1], b""):
        with pytest.raises(zstandard.ZstdError):
            unpack(body, most_bytes=20)


def told(body: bytes = b"text", **fields: object) -> bytes:
    """What a process writes that says this of its text, or of why there is none."""
    described = json.dumps(fields).encode()
    return struct.pack(">Q", len(described)) + described + body


@pytest.mark.parametrize("character", ["\0", "\ud800"])
def test_what_it_tells_is_no_text_that_cannot_be_stored(character: str) -> None:
    good = {"num_chars": 4, "pages": None, "language": "en", "title": "A title", "warnings": []}
    settings = DocumentSettings()
    assert understand(told(**good), settings) == (Extracted.model_validate(good), b"text")
    bad = f"a{character}b"
    warned = {"code": "pages_without_text", "message": bad}
    for output in (
        told(**good | {"title": bad}),
        told(**good | {"warnings": [warned]}),
        told(b"", code="document_corrupt", message=bad),
    ):
        found = understand(output, settings)
        assert isinstance(found, Refusal)
        assert (found.fault, found.message) == (
            Fault.CORRUPT,
            "The document upsets the program that reads it.",
        )
