import pytest

from jobs.engines.tensors import (
    NOTHING_DECLARED,
    DeclaredTensor,
    DeclaredTensors,
    TensorInput,
    TensorRequest,
)
from jobs.errors import InvalidRequestError, LongbatchError, UnsupportedParameterError

TABLE = DeclaredTensor("FP16", (-1, 16))
IDS = DeclaredTensor("INT32", (-1,))
LOGITS = DeclaredTensor("FP32", (-1, -1))
OWN = frozenset({"input_ids", "output_ids"})
DECLARED = DeclaredTensors({"table": TABLE, "ids": IDS}, {"logits": LOGITS}, OWN)


def passing(name: str, datatype: str, *shape: int) -> TensorRequest:
    return TensorRequest({name: TensorInput(datatype, shape, b"")})


def test_what_is_declared_may_be_named() -> None:
    table = TensorInput("FP16", (3, 16), b"")
    TensorRequest({"table": table}, ("logits",)).check(DECLARED, "m")
    TensorRequest().check(NOTHING_DECLARED, "m")


@pytest.mark.parametrize(
    ("asked", "param", "said"),
    [
        (passing("input_ids", "INT32", 1), "engine_inputs.input_ids", "Longbatch sets this input itself"),
        (passing("other", "INT32", 1), "engine_inputs.other", r"declares ids \(INT32 \[-1\]\), table"),
        (passing("logits", "FP32", 1, 1), "engine_inputs.logits", "no such input"),
        (
            passing("table", "FP32", 1, 16),
            "engine_inputs.table",
            r"must be FP16 \[-1, 16\], not FP32 \[1, 16\]",
        ),
        (passing("table", "FP16", 1, 15), "engine_inputs.table", r"not FP16 \[1, 15\]"),
        (passing("table", "FP16", 16), "engine_inputs.table", r"not FP16 \[16\]"),
        (TensorRequest(outputs=("logits", "table")), "engine_outputs.1", r"declares logits \(FP32"),
        (TensorRequest(outputs=("output_ids",)), "engine_outputs.0", "Longbatch reads this output itself"),
    ],
)
def test_what_is_not_declared_like_that_is_refused_by_its_name(
    asked: TensorRequest, param: str, said: str
) -> None:
    with pytest.raises(InvalidRequestError, match=said) as raised:
        asked.check(DECLARED, "m")
    assert raised.value.param == param


@pytest.mark.parametrize(
    ("asked", "param"),
    [(passing("table", "FP16", 1, 16), "engine_inputs"), (TensorRequest(outputs=("x",)), "engine_outputs")],
)
def test_a_model_that_declares_nothing_is_passed_nothing(asked: TensorRequest, param: str) -> None:
    with pytest.raises(UnsupportedParameterError, match="those on Triton do") as raised:
        asked.check(NOTHING_DECLARED, "m")
    assert raised.value.param == param


def test_a_request_may_name_what_all_engines_of_a_model_declare_alike() -> None:
    other = DeclaredTensors({"table": IDS, "ids": IDS}, {}, frozenset({"seed"}))
    common = DECLARED.common(other)
    assert common == DeclaredTensors({"ids": IDS}, {}, OWN | {"seed"})
    with pytest.raises(LongbatchError):
        passing("table", "FP16", 1, 16).check(common, "m")
    assert not DECLARED.common(NOTHING_DECLARED).is_any


def test_what_is_stored_reads_the_same() -> None:
    assert DeclaredTensors.read(DECLARED.written()) == DECLARED
    assert DeclaredTensors.read(None) == NOTHING_DECLARED
    asked = TensorRequest({"ids": TensorInput("INT32", (2,), bytes(range(8)))}, ("logits",))
    assert TensorRequest.read(asked.written()) == asked
