"""The server of Longbatch, as a program: nothing here is meant to be imported by others.

Its packages (jobs, worker, api, cli, migrations) lie in the folder `code` of the installed package, or next
to this one in a checkout. They are put on the path of this process alone, so that no environment has a
top-level `api` or `jobs`.
"""

import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
CODE = _HERE / "code" if (_HERE / "code").is_dir() else _HERE.parent

if str(CODE) not in sys.path:
    sys.path.insert(0, str(CODE))
