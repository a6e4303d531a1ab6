"""Which NVIDIA driver an image needs, and what a plan says of the one that is there."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.engine import drivers, plan, profile
from cli.engine.profile import Profile
from cli.triton_files import TRITON_FILES
from longbatch.cli.main import application

A6000 = profile.load("llama-3.1-8b-a6000")
H100 = profile.load("llama-3.1-8b-h100")


def with_image(of: Profile, release: str) -> Profile:
    name = f"registry.example/tritonserver:{release}-trtllm-python-py3"
    return of.model_copy(update={"image": of.image.model_copy(update={"name": name})})


@pytest.mark.parametrize(
    ("release", "driver"),
    [
        ("25.05", "570.124.06"),
        ("25.06", "575.51.03"),
        ("25.11", "580.95.05"),
        ("26.02", "580.95.05"),
        ("26.03", "590.44.01"),
        ("26.07", "590.44.01"),
    ],
)
def test_an_image_needs_the_driver_that_nvidia_lists(release: str, driver: str) -> None:
    assert plan.plan(with_image(A6000, release)).driver == driver


@pytest.mark.parametrize(
    "name", ["mine/engine", "tritonserver:99.01-trtllm-python-py3", "tritonserver:26.07-vllm"]
)
def test_nothing_is_said_of_an_image_that_nvidia_does_not_list(name: str) -> None:
    assert drivers.required(name) is None


def test_an_older_driver_is_told_with_what_is_needed_and_which_images_would_do() -> None:
    said = drivers.mismatch(with_image(A6000, "26.07"), "570.124.06")
    assert said == (
        "the image 26.07 needs NVIDIA driver 590.44.01 or newer, and this machine has 570.124.06:"
        " install a newer driver, or set image.name to an image from 25.01 to 25.05"
    )


def test_a_driver_older_than_all_images_need_leaves_a_newer_driver_alone() -> None:
    said = drivers.mismatch(A6000, "535.54.03")
    assert said == (
        "the image 25.05 needs NVIDIA driver 570.124.06 or newer, and this machine has 535.54.03:"
        " install a newer driver"
    )


def test_a_data_center_card_may_have_an_older_driver() -> None:
    said = drivers.mismatch(with_image(H100, "26.07"), "580.95.05")
    assert said is not None
    assert "forward compatibility" in said


@pytest.mark.parametrize("installed", ["570.124.06", "570.133.20", "590.44.01"])
def test_a_driver_that_is_new_enough_is_not_mentioned(installed: str) -> None:
    assert drivers.mismatch(A6000, installed) is None


def test_a_plan_prints_the_driver_and_warns_of_an_older_one_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 550.54.15\necho 550.54.15\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    answer = CliRunner().invoke(application(), ["engine", "plan", "llama-3.1-8b-a6000"])
    assert answer.exit_code == 0
    assert "the image needs NVIDIA driver 570.124.06 or newer" in answer.stdout
    assert "this machine has 550.54.15" in " ".join(answer.stderr.split())


def test_a_plan_needs_no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    answer = CliRunner().invoke(application(), ["engine", "plan", "llama-3.1-8b-a6000"])
    assert (answer.exit_code, answer.stderr) == (0, "")


def test_the_page_shows_the_same_table() -> None:
    page = (TRITON_FILES.parent / "docs" / "engines" / "tensorrt-llm.md").read_text()
    shown = re.findall(r"^\| (\d\d\.\d\d)(?:,| to) (\d\d\.\d\d) \|.*\| ([\d.]+) \|$", page, re.MULTILINE)
    lines = (TRITON_FILES / "drivers.txt").read_text().splitlines()
    assert shown == [tuple(line.split()) for line in lines if not line.startswith("#")]
