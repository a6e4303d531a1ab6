"""SGLang's own HTTP server on the CPU: `python serve.py CONDUCT [options of sglang]`.

CONDUCT is JSON: the fields of `scheduler.Conduct`. It runs in an environment that has SGLang.
"""

import functools
import json
import os
import sys
from typing import Any

import absent

absent.install()


def run_scheduler(
    conduct: dict[str, Any], server_args: Any, port_args: Any, *ranks_and_writer: Any, **_named: Any
) -> None:
    """Run the scheduler without a model where SGLang starts its own."""
    import scheduler  # only this process needs it

    *_, writer = ranks_and_writer
    scheduler.run(server_args, port_args, writer, scheduler.Conduct(**conduct))


def main(arguments: list[str]) -> None:
    """Serve until the process is killed."""
    from sglang.srt.entrypoints.http_server import launch_server  # after the stubs
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    conduct, *options = arguments
    server_args = prepare_server_args(options)
    try:
        launch_server(
            server_args, run_scheduler_process_func=functools.partial(run_scheduler, json.loads(conduct))
        )
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


if __name__ == "__main__":
    main(sys.argv[1:])
