"""Reading an answer's body without trusting its length."""

import httpx2


async def body_of(answer: httpx2.Response, *, max_bytes: int) -> bytes:
    """Read the beginning of a body, which may be endless."""
    found = bytearray()
    async for part in answer.aiter_bytes():
        found += part
        if len(found) >= max_bytes:
            break
    return bytes(found[:max_bytes])
