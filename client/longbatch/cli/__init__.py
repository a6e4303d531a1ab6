"""The command `longbatch`."""

import sys


def main() -> None:
    """Run the command line."""
    if sys.argv[1:] == ["--version"]:  # needs no Typer
        from longbatch.cli.version import versions

        sys.stdout.write(versions() + "\n")
        return
    from longbatch.cli.main import run

    run()
