"""Texts that cannot be cut safely, encoded whole in a child process with limits on memory and time.

`python -m jobs.prompts.uncut_text` is the child: it reads the tokenizer and the text, and writes the ids
as int32.
"""

import array
import math
import os
import resource
import signal
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import tokenizers

from jobs.errors import CountingInterruptedError, PromptUncountableError

_ROOT: Final = Path(__file__).resolve().parents[2]
# One thread. Nothing is inherited: neither settings with their secrets nor what changes Python's imports.
_ENVIRONMENT: Final = {
    "PATH": os.defpath,
    "LANG": "C.UTF-8",
    "MALLOC_ARENA_MAX": "1",
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
_MIB: Final = 2**20
_EXIT_OUT_OF_MEMORY: Final = 97
# How the child ends when an allocation fails: with its own exit status, or aborted by Rust.
_OUT_OF_MEMORY: Final = frozenset({_EXIT_OUT_OF_MEMORY, -signal.SIGABRT})


@dataclass(frozen=True, slots=True)
class ChildLimits:
    """The limits of a child process that encodes one text.

    Attributes:
        memory_mb: private memory, in MiB.
        seconds: of CPU time, and of wall-clock time.
    """

    memory_mb: int = 1024
    seconds: float = 60.0


def encode_in_child(tokenizer: tokenizers.Tokenizer, text: str, limits: ChildLimits) -> bytes:
    """Encode a text in a child process; return its int32 ids.

    Control tokens in the text are encoded as plain text.

    Raises:
        PromptUncountableError: the text takes more memory or time than the limits allow.
        CountingInterruptedError: the child did not start or was killed from outside; try again.
    """
    try:
        return _encode(tokenizer, text, limits)
    except OSError as error:  # out of descriptors, processes or memory
        raise CountingInterruptedError from error


def _encode(tokenizer: tokenizers.Tokenizer, text: str, limits: ChildLimits) -> bytes:
    written = tokenizer.to_str().encode()
    # Not a fork of this process, whose other threads hold locks.
    with subprocess.Popen(
        [
            sys.executable,
            "-E",
            "-s",
            "-B",
            "-m",
            "jobs.prompts.uncut_text",
            str(limits.memory_mb),
            str(limits.seconds),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # a panic quotes what it reads
        cwd=_ROOT,
        env=_ENVIRONMENT,
        start_new_session=True,
    ) as process:
        try:
            sent = struct.pack(">Q", len(written)) + written + text.encode()
            output, _ = process.communicate(sent, timeout=limits.seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            raise _too_long(limits) from None
        except BaseException:
            process.kill()
            raise
    if process.returncode == -signal.SIGXCPU:
        raise _too_long(limits)
    if process.returncode in _OUT_OF_MEMORY:
        raise PromptUncountableError(
            f"Counting the text takes more than {limits.memory_mb} MiB of memory.",
            details={"limit": limits.memory_mb, "limit_name": "memory_mb"},
        )
    if process.returncode != 0:  # the worker stops, or the host is out of memory
        raise CountingInterruptedError
    return output


def _too_long(limits: ChildLimits) -> PromptUncountableError:
    return PromptUncountableError(
        f"Counting the text takes more than {limits.seconds:g} seconds.",
        details={"limit": limits.seconds, "limit_name": "seconds"},
    )


def main() -> int:
    """Encode the text on standard input."""
    memory, seconds = int(sys.argv[1]) * _MIB, math.ceil(float(sys.argv[2]))
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    (size,) = struct.unpack(">Q", sys.stdin.buffer.read(8))
    tokenizer = tokenizers.Tokenizer.from_buffer(sys.stdin.buffer.read(size))
    tokenizer.encode_special_tokens = True
    text = sys.stdin.buffer.read().decode()
    try:
        (encoding,) = tokenizer.encode_batch_fast([text], add_special_tokens=False)
    except BaseException:  # noqa: BLE001  # a panic is no Exception, and means that memory ran out
        os._exit(_EXIT_OUT_OF_MEMORY)
    sys.stdout.buffer.write(array.array("i", encoding.ids).tobytes())
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except MemoryError:
        os._exit(_EXIT_OUT_OF_MEMORY)
