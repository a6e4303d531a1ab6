"""`python -m longbatch_server MODULE ARGUMENTS`: run one of the server's programs, such as `api`."""

import runpy
import sys

import longbatch_server  # noqa: F401  # puts the server's packages on the path

if __name__ == "__main__":
    del sys.argv[0]
    if not sys.argv:
        sys.exit("name a program: api, worker, alembic, or cli")
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
