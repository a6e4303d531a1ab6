"""Texts that no known place cuts, encoded whole by a child process with limits of memory and time.

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
# One thread; nothing of ours, neither settings with their secrets nor what changes Python's imports.
_ENVIRONMENT: Final = {
    "PATH": os.defpath,
    "LANG": "C.UTF-8",
    "MALLOC_ARENA_MAX": "1",
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
_MIB: Final = 2**20
_EXIT_OUT_OF_MEMORY: Final = 97
# How the child ends when an allocation fails: by an exit of its own, or as Rust does it.
_OUT_OF_MEMORY: Final = frozenset({_EXIT_OUT_OF_MEMORY, -signal.SIGABRT})


@dataclass(frozen=True, slots=True)
class ChildLimits:
    """What a child process may take for one text.

    Attributes:
        memory_mb: MiB of memory of its own.
        seconds: of CPU time, and of time by the clock.
    """

    memory_mb: int = 1024
    seconds: float = 60.0


def encode_in_child(tokenizer: tokenizers.Tokenizer, text: str, limits: ChildLimits) -> bytes:
    """Encode a text as this tokenizer does, control tokens as text; the ids as int32.

    Raises:
        PromptUncountableError: it takes more memory or time than the limits allow.
        CountingInterruptedError: the child did not start, or something else ended it; try again.
    """
    try:
        return _encode(tokenizer, text, limits)
    except OSError as error:  # no descriptors, processes or memory are left
        raise CountingInterruptedError from error


def _encode(tokenizer: tokenizers.Tokenizer, text: str, limits: ChildLimits) -> bytes:
    written = tokenizer.to_str().encode()
    # Starts without a copy of this process, whose other threads hold locks.
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
    if process.returncode != 0:  # at a worker's stop, or where the host has no memory left
        raise CountingInterruptedError
    return output


def _too_long(limits: ChildLimits) -> PromptUncountableError:
    return PromptUncountableError(
        f"Counting the text takes more than {limits.seconds:g} seconds.",
        details={"limit": limits.seconds, "limit_name": "seconds"},
    )


def main() -> int:
    """Encode what standard input holds."""
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
    except BaseException:  # noqa: BLE001  # a panic is no Exception, and says that memory ran out
        os._exit(_EXIT_OUT_OF_MEMORY)
    sys.stdout.buffer.write(array.array("i", encoding.ids).tobytes())
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except MemoryError:
        os._exit(_EXIT_OUT_OF_MEMORY)
