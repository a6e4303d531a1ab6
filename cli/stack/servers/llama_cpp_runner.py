"""llama.cpp's server in this process, until it is stopped: `llama_cpp_runner.py NAME=VALUE…`.

Run by path, so that the process imports nothing of ours. Each name is an option of `xllamacpp.CommonParams`,
with dots for nested ones; each value is JSON.
"""

import functools
import json
import os
import signal
import sys

import xllamacpp


def main() -> None:
    """Serve until SIGTERM or SIGINT; never return."""
    params = xllamacpp.CommonParams()
    for option in sys.argv[1:]:
        name, _, value = option.partition("=")
        *outer, last = name.split(".")
        given = json.loads(value)
        if name == "lora_adapters":  # paths; a request that names none of them gets none
            given = [xllamacpp.CommonAdapterLoraInfo(each, 0.0) for each in given]
        setattr(functools.reduce(getattr, outer, params), last, given)
    signals = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # the server's threads inherit it
    server = xllamacpp.Server(params)
    print(f"llama.cpp answers at {server.listening_address}", flush=True)
    signal.sigwait(signals)
    os._exit(0)  # its destructor waits for running requests


if __name__ == "__main__":
    main()
