"""The Dockerfile names only what exists, and its images tell what they are made of."""

import fnmatch
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli import sbom

ROOT = Path(__file__).resolve().parents[3]
# Packages that the local engine does without.
SERVER_ONLY = {"api", "migrations"}
LABELS = (
    *("title", "description", "version", "revision", "created", "licenses", "vendor"),
    *("base.name", "base.digest"),
)


def stages() -> dict[str, list[str]]:
    """Read each stage's instructions, its FROM first."""
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("FROM "):
            found[line.rpartition(" AS ")[2]] = []
        if found and line and not line.startswith("#"):
            found[list(found)[-1]].append(line)
    return found


def with_bases(name: str) -> Iterator[str]:
    """List the instructions of a stage and of those that it begins from."""
    found = stages()
    base = found[name][0].removeprefix("FROM ").partition(" ")[0]
    if base in found:
        yield from with_bases(base)
    yield from found[name]


def copied(name: str) -> set[str]:
    """List what a stage copies from the repository."""
    lines = [line.split()[1:] for line in stages()[name] if line.startswith("COPY ")]
    return {word for *sources, _ in lines for word in sources if not sources[0].startswith("--from")}


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return loaded


def test_the_images_have_every_package_that_the_wheel_has() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    names = (
        name.partition("longbatch_server.code.")[2] for name in pyproject["tool"]["setuptools"]["packages"]
    )
    packages = {name.partition(".")[0] for name in names if name}
    assert packages | {"client/longbatch"} <= copied("server-files")
    assert packages - SERVER_ONLY <= copied("engine-files")


def test_everything_that_is_copied_exists_and_reaches_the_builder() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignored[0] == "*"
    sent = [line.removeprefix("!") for line in ignored if line.startswith("!")]
    for source in {each for stage in stages() for each in copied(stage)}:
        assert (ROOT / source).exists(), source
        assert any(fnmatch.fnmatch(source, each) for each in sent), source
    assert all((ROOT / each).exists() for each in sent)


@pytest.mark.parametrize(("image", "extra"), [("server", "s3"), ("engine", "engine")])
def test_an_image_installs_locked_packages_and_none_for_developers(image: str, extra: str) -> None:
    lock = f"requirements-{image}.lock"
    assert lock in copied(f"{image}-files")
    locked = set(re.findall(r"^([a-z0-9.-]+)==", (ROOT / lock).read_text(), re.MULTILINE))
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())

    def names(requirements: list[str]) -> set[str]:
        found = {re.split(r"[\[<>=;~! ]", each)[0].lower() for each in requirements}
        return found - {"longbatch", "longbatch-server"}

    assert names(pyproject["project"]["dependencies"]) <= locked
    extras = pyproject["project"]["optional-dependencies"]
    assert names(extras[extra]) <= locked
    # Of sqlalchemy's asyncio; pytriton brings it to .venv, and not to the server.
    assert "greenlet" in locked
    developers = names([each for each in pyproject["dependency-groups"]["dev"] if isinstance(each, str)])
    # Tests use some of what the extras install, too; pillow comes with python-pptx.
    shipped = {each for extra in ("s3", "traces", "oidc") for each in names(extras[extra])} | {"pillow"}
    assert locked & developers <= shipped


@pytest.mark.parametrize("image", ["server", "engine"])
def test_an_image_has_no_root_and_no_tools_of_its_build_and_tells_of_its_health(image: str) -> None:
    lines = list(with_bases(image))
    assert [line for line in lines if line.startswith("USER ")] == ["USER 10001:10001"]
    assert 'CMD ["python", "-m", "cli.alive"]' in next(
        line for line in lines if line.startswith("HEALTHCHECK ")
    )
    assert not any("pip install" in line or "apt-get" in line for line in lines if line.startswith("RUN "))
    labels = " ".join(line for line in lines if line.startswith("LABEL "))
    assert set(re.findall(r"org\.opencontainers\.image\.([a-z.]+)=", labels)) == set(LABELS)


def test_the_base_and_its_digest_are_build_arguments() -> None:
    first = (ROOT / "Dockerfile").read_text().partition("FROM")[0]
    assert {"BASE_IMAGE", "BASE_DIGEST", "BUILDER_IMAGE"} == set(
        re.findall(r"^ARG (\w+)=", first, re.MULTILINE)
    )
    for name in ("builder", "base"):
        assert re.match(r"FROM \$\{\w+\}", stages()[name][0])


def test_compose_builds_targets_that_exist(compose: dict[str, Any]) -> None:
    built = {each["build"]["target"] for each in compose["services"].values() if "build" in each}
    assert built == {"server", "engine"}
    assert built <= set(stages())


def test_what_compose_builds_runs_without_rights_on_a_file_system_that_it_cannot_write(
    compose: dict[str, Any],
) -> None:
    for name, each in compose["services"].items():
        if "build" in each:
            assert each["read_only"], name
            assert each["cap_drop"] == ["ALL"], name
            assert each["security_opt"] == ["no-new-privileges:true"], name


STATUS = """\
Package: libc6
Status: install ok installed
Architecture: amd64
Description: a library
 whose second line: has a colon
Version: 2.36-9+deb12u1

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1

Package: passwd
Status: install ok installed
Architecture: all
Version: 1:4.13
"""


def test_the_list_of_parts_has_installed_packages_of_debian_and_of_python() -> None:
    debian = list(sbom.debian_components(STATUS, "debian-12"))
    assert [each["purl"] for each in debian] == [
        "pkg:deb/debian/libc6@2.36-9%2Bdeb12u1?arch=amd64&distro=debian-12",
        "pkg:deb/debian/passwd@1%3A4.13?arch=all&distro=debian-12",
    ]
    written = sbom.document(sbom.python_components(), debian)
    assert (written["bomFormat"], written["specVersion"]) == ("CycloneDX", "1.5")
    by_name = {each["name"]: each for each in written["components"]}
    assert by_name["sqlalchemy"]["purl"].startswith("pkg:pypi/sqlalchemy@2.")
    assert by_name["sqlalchemy"]["licenses"]
    references = [each["bom-ref"] for each in written["components"]]
    assert len(references) == len(set(references))
    assert json.dumps(written) == json.dumps(sbom.document(sbom.python_components(), debian))
