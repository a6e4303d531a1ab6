"""`python -m cli`: the command `longbatch` where it is not installed, as in the container images."""

from cli.main import main

if __name__ == "__main__":
    main()
