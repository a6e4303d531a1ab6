"""`python -m cli.sbom FILE`: write what this file system is made of as a CycloneDX document.

That is the packages of this Python's environment, those of Debian below it, and Python itself.
"""

import argparse
import json
import platform
import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote
from uuid import NAMESPACE_URL, uuid5

# CycloneDX 1.5: the newest that all usual scanners read.
_SPECIFICATION: Final = "1.5"
_STATUS: Final = Path("/var/lib/dpkg/status")
_OS_RELEASE: Final = Path("/etc/os-release")
_LONGEST_LICENCE: Final = 100  # characters; old packages have the whole text in that field

Component = dict[str, Any]


def document(python: list[Component], debian: list[Component]) -> dict[str, Any]:
    """Join the components to a CycloneDX document; equal ones make an equal document."""
    interpreter = {
        "type": "platform",
        "bom-ref": "python",
        "name": "python",
        "version": platform.python_version(),
    }
    components = [interpreter, *python, *debian]
    content = json.dumps(components, sort_keys=True)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": _SPECIFICATION,
        "serialNumber": f"urn:uuid:{uuid5(NAMESPACE_URL, content)}",
        "version": 1,
        "metadata": {"component": {"type": "container", "bom-ref": "image", "name": "longbatch"}},
        "components": components,
    }


def python_components() -> list[Component]:
    """List the distributions of this environment, by name."""
    found = {}
    for each in metadata.distributions():
        name = re.sub(r"[-_.]+", "-", each.name).lower()
        found[name] = _component(
            f"pkg:pypi/{name}@{quote(each.version, safe='')}", name, each.version, _licence(each)
        )
    return [found[name] for name in sorted(found)]


def debian_components(status: str, distribution: str) -> Iterator[Component]:
    """List the installed packages of a dpkg status file, in its order.

    Args:
        status: text of the file.
        distribution: the release, as in `debian-12`.
    """
    for paragraph in status.split("\n\n"):
        fields = dict(re.findall(r"^([\w-]+): (.*)$", paragraph, re.MULTILINE))
        if fields.get("Status") == "install ok installed":
            name, version, architecture = (fields[each] for each in ("Package", "Version", "Architecture"))
            known_as = f"{distribution.partition('-')[0]}/{quote(name)}@{quote(version, safe='~')}"
            purl = f"pkg:deb/{known_as}?arch={architecture}&distro={distribution}"
            yield _component(purl, name, version, None)


def main() -> None:
    """Write the file that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m cli.sbom", description=__doc__)
    parser.add_argument("file", type=Path)
    release = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', _read(_OS_RELEASE), re.MULTILINE))
    distribution = f"{release.get('ID', 'linux')}-{release.get('VERSION_ID', '')}".rstrip("-")
    written = document(python_components(), list(debian_components(_read(_STATUS), distribution)))
    parser.parse_args().file.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")


def _component(purl: str, name: str, version: str, licence: Component | None) -> Component:
    plain: Component = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
    return plain | ({"licenses": [licence]} if licence else {})


def _licence(distribution: metadata.Distribution) -> Component | None:
    """Read what a distribution says of its licence, the newest way first."""
    told = distribution.metadata
    for expression in told.get_all("License-Expression") or ():
        return {"expression": expression}
    name = "".join(told.get_all("License") or ()).strip()
    if name and "\n" not in name and len(name) <= _LONGEST_LICENCE:
        return {"license": {"name": name}}
    kinds = [
        each.rpartition(" :: ")[2]
        for each in told.get_all("Classifier") or ()
        if each.startswith("License ::")
    ]
    return {"license": {"name": kinds[0]}} if kinds else None


def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.is_file() else ""


if __name__ == "__main__":
    main()
