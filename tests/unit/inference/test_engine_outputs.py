"""The tensors of a run as their parts come."""

import io

import numpy as np
import pytest
from numpy.typing import NDArray

from worker.engine.deltas import OutputDelta
from worker.inference.tensors.outputs import EngineOutputs, OutputsTooLargeError, OutputsUnreadableError

NAMES = ("a", "b")


def part(name: str, values: NDArray[np.float32], datatype: str = "FP32") -> OutputDelta:
    return OutputDelta(name, datatype, values.shape, values.tobytes())


def table(*shape: int, start: int = 1) -> NDArray[np.float32]:
    size = int(np.prod(shape))
    return np.arange(start, start + size, dtype=np.float32).reshape(shape)


def gathered(*parts: OutputDelta, max_bytes: int = 2**24) -> EngineOutputs:
    found = EngineOutputs(NAMES, max_bytes=max_bytes)
    for each in parts:
        found.add(each)
    return found


def read(found: EngineOutputs, name: str = "a") -> NDArray[np.float32]:
    content = b"".join(found.parts(name))
    [about] = [each for each in found.described() if each.name == name]
    assert len(content) == about.num_bytes
    loaded: NDArray[np.float32] = np.load(io.BytesIO(content))
    assert loaded.shape == about.shape
    return loaded


def test_one_part_is_the_whole_tensor() -> None:
    found = gathered(part("a", table(3, 4)))
    assert read(found).tolist() == table(3, 4).tolist()
    assert found.missing == ["b"]


@pytest.mark.parametrize("shape", [(1, 1, 4), (2, 4), (1, 3, 4)])
def test_parts_are_joined_along_the_last_dimension_but_one(shape: tuple[int, ...]) -> None:
    parts = [table(*shape, start=start) for start in (0, 100, 200)]
    found = gathered(*(part("a", each) for each in parts))
    assert read(found).tolist() == np.concatenate(parts, axis=-2).tolist()


def test_parts_of_a_list_are_joined_and_may_be_empty() -> None:
    found = gathered(part("a", table(0)), part("a", table(2)), part("a", table(1, start=9)))
    assert read(found).tolist() == [1, 2, 9]


def test_a_single_zero_in_place_of_a_table_is_none() -> None:
    nothing = np.zeros((1, 1), dtype=np.float32)
    found = gathered(part("b", nothing), part("a", nothing), part("a", table(2, 3)), part("a", nothing))
    assert read(found).tolist() == table(2, 3).tolist()
    assert found.missing == ["b"]
    one = gathered(part("a", np.zeros(1, dtype=np.float32)))
    assert read(one).tolist() == [0], "a list of a single zero is a value"


def test_a_tensor_larger_than_a_part_of_a_file_is_read_in_parts() -> None:
    large = table(2**19)
    found = gathered(part("a", large))
    assert len(list(found.parts("a"))) == 3
    assert (read(found) == large).all()


def test_they_are_bounded_together() -> None:
    found = gathered(part("a", table(256)), part("b", table(255)), max_bytes=2048)
    assert found.error is None
    assert not found.add(part("b", table(2))), "this tells so"
    assert isinstance(found.error, OutputsTooLargeError)
    assert "2048" in found.error.message
    assert found.add(part("b", table(2))), "and nothing does so again"
    assert not found.described()


@pytest.mark.parametrize(
    "other",
    [
        part("a", table(2, 5)),
        part("a", table(4)),
        part("a", table(1, 2, 4)),
        part("a", table(1, 4), datatype="INT32"),
        part("a", table(1, 4), datatype="BYTES"),
        OutputDelta("a", "FP32", (1, 4), b"\0"),
    ],
)
def test_parts_that_do_not_fit_are_an_error(other: OutputDelta) -> None:
    found = gathered(part("a", table(2, 4)), other)
    assert isinstance(found.error, OutputsUnreadableError)


def test_parts_of_several_beams_cannot_be_joined() -> None:
    assert gathered(part("a", table(2, 1, 4))).error is None
    assert gathered(part("a", table(2, 1, 4)), part("a", table(2, 1, 4))).error is not None
