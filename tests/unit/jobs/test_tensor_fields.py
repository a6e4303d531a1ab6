"""Tensors of a job as its request writes them."""

import json
from base64 import b64encode
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from pydantic import ValidationError

from api.http.body import parse
from api.jobs.requests import JobRequest
from api.jobs.tensors import MAX_FILE_BYTES, MAX_INLINE_BYTES, MAX_INPUTS, MAX_OUTPUTS
from jobs.engines.tensors import DATATYPES, DeclaredTensor, DeclaredTensors, TensorFile, TensorRequest
from jobs.errors import ForbiddenError, InvalidRequestError

FILE = "file-" + "0" * 32
SHAPES = {"x": (-1,), "xx": (-1, -1), "one": ()}
DECLARED = DeclaredTensors(
    {f"{name}_{kind}": DeclaredTensor(kind, shape) for name, shape in SHAPES.items() for kind in DATATYPES},
    {"out": DeclaredTensor("FP32", (-1,))},
)


def asked(declared: DeclaredTensors | None = DECLARED, **fields: Any) -> TensorRequest:  # noqa: ANN401  # JSON
    request = parse(JobRequest, json.dumps({"input": "Hi"} | fields).encode())
    return request.tensors_on("m", None if declared is None else {"m": declared})


def packed(kind: str, data: list[Any]) -> bytes:
    name = f"x_{kind}"
    given = {"datatype": kind, "shape": [len(data)], "data": data}
    return asked(engine_inputs={name: given}).inputs[name].data


@pytest.mark.parametrize(
    ("kind", "data", "dtype"),
    [
        ("BOOL", [True, False], "?"),
        ("INT8", [-128, 127], "<i1"),
        ("UINT8", [0, 255], "<u1"),
        ("INT32", [-(2**31), 2**31 - 1], "<i4"),
        ("UINT64", [0, 2**64 - 1], "<u8"),
        ("FP16", [1, -0.5], "<f2"),
        ("FP32", [1, 0.1], "<f4"),
        ("FP64", [3, 1e300], "<f8"),
    ],
)
def test_elements_are_written_as_the_engine_reads_them(kind: str, data: list[Any], dtype: str) -> None:
    raw = packed(kind, data)
    assert np.frombuffer(raw, dtype=dtype).tolist() == np.array(data, dtype=dtype).tolist()
    given = {"datatype": kind, "shape": [2], "base64": b64encode(raw).decode()}
    assert asked(engine_inputs={f"x_{kind}": given}).inputs[f"x_{kind}"].data == raw


def test_many_wrong_elements_are_no_more_errors_than_one() -> None:
    given = {"datatype": "FP32", "shape": [100], "data": [{}] * 100}
    with pytest.raises(ValidationError) as caught:
        JobRequest.model_validate({"input": "Hi", "engine_inputs": {"x": given}})
    assert {each["loc"][3] for each in caught.value.errors()} == {0}


def test_texts_come_after_their_lengths() -> None:
    assert packed("BYTES", ["a", "né"]) == b"\x01\0\0\0a\x03\0\0\0n\xc3\xa9"


def test_a_shape_may_have_any_number_of_dimensions() -> None:
    given = {"datatype": "INT8", "shape": [2, 2], "data": [1, 2, 3, 4]}
    assert asked(engine_inputs={"xx_INT8": given}).inputs["xx_INT8"].shape == (2, 2)
    single = {"datatype": "INT8", "shape": [], "data": [5]}
    assert asked(engine_inputs={"one_INT8": single}).inputs["one_INT8"].data == b"\x05"


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"datatype": "INT8", "shape": [1], "data": [128]}, "engine_inputs.x_INT8.data"),
        ({"datatype": "INT8", "shape": [1], "data": [True]}, "engine_inputs.x_INT8.data"),
        ({"datatype": "INT8", "shape": [1], "data": [1.0]}, "engine_inputs.x_INT8.data"),
        ({"datatype": "INT8", "shape": [2], "data": [1]}, "engine_inputs.x_INT8.data"),
        ({"datatype": "INT8", "shape": [1]}, "engine_inputs.x_INT8"),
        ({"datatype": "INT8", "shape": [1], "data": [1], "base64": "AQ=="}, "engine_inputs.x_INT8"),
        ({"datatype": "INT8", "shape": [1], "base64": "AQE="}, "engine_inputs.x_INT8.base64"),
        ({"datatype": "INT8", "shape": [1], "base64": "?"}, "engine_inputs.x_INT8.base64"),
        ({"datatype": "INT9", "shape": [1], "data": [1]}, "engine_inputs.x_INT8.datatype"),
        ({"datatype": "INT8", "shape": [0], "data": []}, "engine_inputs.x_INT8.shape.0"),
        ({"datatype": "INT8", "shape": [1] * 9, "data": [1]}, "engine_inputs.x_INT8.shape"),
        ({"datatype": "INT16", "shape": [1], "data": [1]}, "engine_inputs.x_INT8"),
        ({"datatype": "FP16", "shape": [1], "data": [70000]}, "engine_inputs.x_INT8.data"),
        ({"datatype": "FP64", "shape": [1], "data": [10**400]}, "engine_inputs.x_INT8.data"),
        ({"datatype": "BF16", "shape": [1], "data": [1]}, "engine_inputs.x_INT8.data"),
        ({"datatype": "BYTES", "shape": [1], "data": [1]}, "engine_inputs.x_INT8.data"),
        ({"datatype": "BYTES", "shape": [1], "base64": "AQ=="}, "engine_inputs.x_INT8.base64"),
        ({"datatype": "BOOL", "shape": [1], "data": [1]}, "engine_inputs.x_INT8.data"),
        ({"datatype": "INT8", "shape": [1], "data": [1], "file_id": FILE}, "engine_inputs.x_INT8"),
        ({"datatype": "INT8", "shape": [1], "file_id": "job_1"}, "engine_inputs.x_INT8.file_id"),
        ({"datatype": "BYTES", "shape": [1], "file_id": FILE}, "engine_inputs.x_INT8.file_id"),
    ],
)
def test_a_malformed_tensor_is_refused_by_its_name(given: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        asked(engine_inputs={"x_INT8": given})
    assert raised.value.param == param


def test_a_file_holds_as_many_bytes_as_the_tensor() -> None:
    given = {"datatype": "FP32", "shape": [2, 3], "file_id": FILE}
    found = asked(engine_inputs={"xx_FP32": given})
    assert found.files == (TensorFile(UUID(int=0), 24, "engine_inputs.xx_FP32.file_id"),)
    assert TensorRequest.read(found.written()) == found


def test_sizes_are_bounded() -> None:
    half = b64encode(bytes(MAX_INLINE_BYTES // 2)).decode()
    given = {"datatype": "INT8", "shape": [MAX_INLINE_BYTES // 2], "base64": half}
    pair: dict[str, Any] = {"x_INT8": given, "x_UINT8": given | {"datatype": "UINT8"}}
    assert len(asked(engine_inputs=pair).inputs) == 2
    in_file = {"datatype": "INT8", "shape": [MAX_FILE_BYTES // 2 + 1], "file_id": FILE}
    small = {"datatype": "BOOL", "shape": [1], "data": [True]}
    for fields, param in (
        ({"engine_inputs": pair | {"x_BOOL": small}}, "engine_inputs"),
        ({"engine_inputs": {f"x{each}": small for each in range(MAX_INPUTS + 1)}}, "engine_inputs"),
        ({"engine_inputs": {"x_INT8": in_file, "x_UINT8": in_file | {"datatype": "UINT8"}}}, "engine_inputs"),
        ({"engine_outputs": ["out"] * (MAX_OUTPUTS + 1)}, "engine_outputs"),
        ({"engine_outputs": ["out", "out"]}, "engine_outputs"),
        ({"engine_outputs": ["a b"]}, "engine_outputs.0"),
    ):
        with pytest.raises(InvalidRequestError) as raised:
            asked(**fields)
        assert raised.value.param == param


@pytest.mark.parametrize(
    "fields",
    [
        {"engine_inputs": {"x_BOOL": {"datatype": "BOOL", "shape": [1], "data": [True]}}},
        {"engine_outputs": ["out"]},
    ],
)
def test_a_caller_without_the_scope_may_name_none(fields: dict[str, Any]) -> None:
    with pytest.raises(ForbiddenError, match="'engine'") as raised:
        asked(None, **fields)
    assert raised.value.param == next(iter(fields))
    assert not asked(**fields).is_empty


def test_without_names_no_scope_is_needed() -> None:
    assert asked(None, engine_inputs={}, engine_outputs=[]).is_empty
