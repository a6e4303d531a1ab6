"""What engines' words mean: whose fault it was, whether another try can help, and what a tenant reads."""

import pytest

from jobs.errors import EngineError, EngineLostError, EngineUnavailableError, RetryableEngineError
from worker.engine.triton import errors

ASSERTED = "[TensorRT-LLM][ERROR] Assertion failed: "
STACK = "\n1       0x7f3a740272b5 tensorrt_llm::common::throwRuntimeError(...)\n2  cudaLaunchKernel + 97"
FORWARD = "Executor failed process requestId 7 […]: Encountered an error in forwardAsync function: "


@pytest.mark.parametrize(
    "words",
    [
        "Prompt length (140000) exceeds maximum input length (131071).",
        "unexpected inference input 'temprature' for model 'tensorrt_llm'",
        f"{ASSERTED}topP is 2 (/app/tensorrt_llm/cpp/tensorrt_llm/executor/samplingConfig.cpp:210)",
        f"{ASSERTED}Input token ids are empty (/src/executor/request.cpp:71){STACK}",
        f"Executor failed process requestId 7 due to the following error: {ASSERTED}beam width 4 > 1",
    ],
)
def test_what_the_engine_refuses_is_the_request_s_own_fault(words: str) -> None:
    error = errors.stream_error(words, has_said=False)
    assert type(error) is EngineError
    assert error.message == words
    assert isinstance(errors.stream_error(words, has_said=True), RetryableEngineError), (
        "it had taken the request"
    )


@pytest.mark.parametrize(
    "words",
    [
        f"{FORWARD}{ASSERTED}mNextBlocks.empty() (/src/batch_manager/kvCacheManager.cpp:219)",
        f"{FORWARD}{ASSERTED}Unable to get batch slot for reqId (/src/batch_manager/x.cpp:1161)",
        f"{FORWARD}[TensorRT-LLM][ERROR] CUDA runtime error in cudaMemcpyAsync(dst, src): an illegal address",
        f"{ASSERTED}Error occurred when running GEMM! (/src/KernelRunner.cpp:180)",
        f"{ASSERTED}Can't allocate memory for the workspace",
        f"{ASSERTED}MPI size 2 is not 1",
        "the engine failed",
        "Deadline Exceeded at 10.1.2.3:8001",
    ],
)
def test_what_befell_the_engine_is_worth_another_try_and_no_tenant_reads_it(words: str) -> None:
    error = errors.stream_error(words, has_said=False)
    assert type(error) is RetryableEngineError
    assert (error.said, error.message) == (words, RetryableEngineError().message)


def test_a_server_that_does_not_serve_costs_no_attempt() -> None:
    error = errors.stream_error("Request for unknown model: 'x' is not found", has_said=False)
    assert type(error) is EngineUnavailableError
    assert "unknown model" in error.said
    assert "unknown model" not in error.message


def test_a_call_that_broke_names_its_peer_in_the_log_alone() -> None:
    error = errors.call_error(ValueError("ipv4:10.1.2.3:8001: connection reset"))
    assert type(error) is EngineLostError
    assert "10.1.2.3" in error.said
    assert "10.1.2.3" not in error.message


def test_words_can_be_stored_whatever_they_are() -> None:
    error = errors.stream_error("exceeds maximum input length\x00\ud800" + "x" * 9000, has_said=False)
    assert error.message.startswith("exceeds maximum input length\ufffd\ufffdx")
    assert len(error.message) == 500
