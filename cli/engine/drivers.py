"""The NVIDIA driver that an image needs."""

import re
from dataclasses import dataclass
from typing import Final

from cli.engine.profile import Profile
from cli.triton_files import TRITON_FILES

_IMAGE: Final = re.compile(r":(\d\d\.\d\d)(?:-trtllm-.*)?$")


@dataclass(frozen=True, slots=True)
class _Images:
    """Consecutive releases of the image that need the same driver."""

    first: str
    last: str
    driver: str


def required(image: str) -> str | None:
    """Return the oldest driver that the image runs on; None if NVIDIA's table does not list it."""
    release = _release(image)
    return next((each.driver for each in _table() if each.first <= release <= each.last), None)


def mismatch(profile: Profile, driver: str) -> str | None:
    """Describe what is wrong with this driver for the profile's image; None if nothing is known to be.

    `need_driver` of triton/lib.sh says the same of the image that is launched.
    """
    needed = required(profile.image.name)
    if needed is None or _number(driver) >= _number(needed):
        return None
    said = (
        f"the image {_release(profile.image.name)} needs NVIDIA driver {needed} or newer, and this machine"
        f" has {driver}: install a newer driver"
    )
    runnable = [each for each in _table() if _number(each.driver) <= _number(driver)]
    if runnable:
        said += f", or set image.name to an image from {runnable[0].first} to {runnable[-1].last}"
    if not profile.hardware.is_workstation:
        said += "; CUDA's forward compatibility may do, see the image's release notes"
    return said


def _release(image: str) -> str:
    found = _IMAGE.search(image)
    return found[1] if found else ""


def _table() -> list[_Images]:
    lines = (TRITON_FILES / "drivers.txt").read_text(encoding="utf-8").splitlines()
    return [_Images(*line.split()) for line in lines if not line.startswith("#")]


def _number(driver: str) -> tuple[int, ...]:
    return tuple(int(each) for each in re.findall(r"\d+", driver))
