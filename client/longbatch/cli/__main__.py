"""`python -m longbatch.cli`: the command `longbatch` where it is not on the path."""

from longbatch.cli import main

if __name__ == "__main__":
    main()
