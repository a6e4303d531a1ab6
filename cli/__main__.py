"""`python -m cli`: the command `longbatch` where nothing is installed, as in the container images."""

from cli.table import COMMANDS
from longbatch.cli import main, table

if __name__ == "__main__":
    table.add_modules(COMMANDS)
    main()
