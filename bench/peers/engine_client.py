"""A minimal Triton client, as a short script has it: tritonclient, a stream, tokens to the final response."""

import queue
import time
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import tritonclient.grpc as triton

END_OF_TURN = 128_009  # <|eot_id|> of Llama 3
_MODEL = "tensorrt_llm"


class EngineClient:
    """A connection with one stream that carries any number of requests."""

    def __init__(self, url: str) -> None:
        self._client = triton.InferenceServerClient(url)
        self._arrived: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()
        self._client.start_stream(lambda result, error: self._arrived.put((result, error)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def send(self, ids: npt.NDArray[np.int32], limit: int, *, request_id: str) -> None:
        """Send the request.

        Shapes:
            ids: INT32 `[tokens]`.
        """
        inputs = [
            _tensor("input_ids", ids.reshape(1, -1), "INT32"),
            _tensor("input_lengths", np.array([[len(ids)]], dtype=np.int32), "INT32"),
            _tensor("request_output_len", np.array([[limit]], dtype=np.int32), "INT32"),
            _tensor("end_id", np.array([[END_OF_TURN]], dtype=np.int32), "INT32"),
            _tensor("streaming", np.array([[True]]), "BOOL"),
        ]
        self._client.async_stream_infer(
            _MODEL, inputs, request_id=request_id, enable_empty_final_response=True
        )

    def next(self) -> tuple[str, list[int], bool]:
        """Return the next response: request id, token ids, and True if it is the last.

        Raises:
            tritonclient.utils.InferenceServerException: the engine or the connection failed.
        """
        result, error = self._arrived.get()
        if error is not None:
            raise error
        response = result.get_response()
        found = result.as_numpy("output_ids")
        ids: list[int] = [] if found is None else found.ravel().tolist()
        return response.id, ids, response.parameters["triton_final_response"].bool_param

    def ask(self, ids: npt.NDArray[np.int32], limit: int, *, request_id: str) -> tuple[list[int], float]:
        """Return the answer to one prompt, and the monotonic time of its first response."""
        self.send(ids, limit, request_id=request_id)
        _, generated, is_final = self.next()
        first_at = time.monotonic()
        while not is_final:
            _, more, is_final = self.next()
            generated += more
        return generated, first_at

    def close(self) -> None:
        """Cancel open requests and close the connection."""
        self._client.stop_stream(cancel_requests=True)
        self._client.close()


def _tensor(name: str, values: npt.NDArray[Any], datatype: str) -> triton.InferInput:
    tensor = triton.InferInput(name, list(values.shape), datatype)
    tensor.set_data_from_numpy(values)
    return tensor
