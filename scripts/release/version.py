"""The version of a release, in every file that names it.

python -m scripts.release.version 1.2.3     write it
python -m scripts.release.version           print it; fail if the files disagree
"""

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
_VERSION: Final = r"\d+\.\d+\.\d+"
# Each file with the lines that name the version; the group is what stays.
PLACES: Final[Mapping[str, tuple[str, ...]]] = {
    "client/pyproject.toml": (r'(?m)^(version = ")', r'("longbatch-server\[local\]==)'),
    "pyproject.toml": (r'(?m)^(version = ")', r'("longbatch==)'),
    "deploy/helm/longbatch/Chart.yaml": (r"(?m)^(version: )", r'(?m)^(appVersion: ")'),
}


class VersionError(Exception):
    """The files name no version, or several."""


def read(root: Path = ROOT) -> str:
    """Return the one version that all files name.

    Raises:
        VersionError: one of them names none, or another one.
    """
    found = {}
    for file, patterns in PLACES.items():
        text = (root / file).read_text(encoding="utf-8")
        for pattern in patterns:
            match = re.search(f"{pattern}({_VERSION})", text)
            if match is None:
                raise VersionError(f"{file} has no version after {pattern}")
            found[file, pattern] = match[2]
    if len(set(found.values())) > 1:
        raise VersionError(f"the files name several versions: {found}")
    return next(iter(found.values()))


def write(version: str, root: Path = ROOT) -> None:
    """Write the version into all files.

    Raises:
        VersionError: it is not three numbers with dots.
    """
    if not re.fullmatch(_VERSION, version):
        raise VersionError(f"{version} is not three numbers with dots, such as 1.2.3")
    for file, patterns in PLACES.items():
        path = root / file
        text = path.read_text(encoding="utf-8")
        for pattern in patterns:
            text = re.sub(f"{pattern}{_VERSION}", rf"\g<1>{version}", text, count=1)
        path.write_text(text, encoding="utf-8")


def main() -> None:
    """Write the version that the command line names, or print the present one."""
    try:
        if len(sys.argv) > 1:
            write(sys.argv[1])
        sys.stdout.write(read() + "\n")
    except VersionError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
