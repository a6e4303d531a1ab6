"""The status with which the interactive routes answer a job that has failed."""

import pytest

from api.completions.routes import error_of
from api.http.errors import status_of
from jobs.errors import EngineUnableError, LongbatchError, RetryableEngineError, ShownInvalidOutputError
from jobs.models import Job
from jobs.states import JobState


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (EngineUnableError("leave top_k out"), 400, "leave top_k out"),
        (ShownInvalidOutputError("at /age: no"), 500, "at /age: no"),
        (RetryableEngineError("it broke"), 500, "The engine failed: it broke"),
    ],
)
def test_a_parameter_that_the_engine_does_not_take_is_the_caller_s_fault_and_no_other_failure(
    error: LongbatchError, status: int, message: str
) -> None:
    reported = {"code": error.code, "message": error.message}
    answered = error_of(Job(state=JobState.FAILED, error=reported))
    assert answered is not None
    assert (status_of(answered), answered.message) == (status, message)
