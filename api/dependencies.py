"""What routes are given: the parts, the tenant, and the id in the path.

All are coroutines: the framework would send plain functions through a thread each.
"""

from typing import Annotated
from uuid import UUID

from fastapi import Depends, Path, Request

from api.callers import Caller
from api.parts import Parts
from jobs import ids
from jobs.errors import NotFoundError


async def find_parts(request: Request) -> Parts:
    """The parts of the running application."""
    parts: Parts = request.app.state.parts
    return parts


async def find_caller(request: Request) -> Caller:
    """Who sends this request, as the gate found out; only routes that need a key have one."""
    caller: Caller = request.state.caller
    return caller


async def find_tenant(request: Request) -> UUID:
    """Whose rows this request sees."""
    caller: Caller = request.state.caller
    return caller.tenant_id


async def parse_path_id(
    job_id: Annotated[str, Path(description="`job_…`", examples=["job_019c2f3e5a4b7c8d9e0f1a2b3c4d5e6f"])],
) -> UUID:
    """The job id of the path.

    Raises:
        NotFoundError: no job can have it; the same answer as for a job that is somebody else's.
    """
    try:
        return ids.parse_job_id(job_id)
    except NotFoundError:
        raise NotFoundError("there is no such job") from None


PartsDep = Annotated[Parts, Depends(find_parts)]
CallerDep = Annotated[Caller, Depends(find_caller)]
TenantDep = Annotated[UUID, Depends(find_tenant)]
JobIdDep = Annotated[UUID, Depends(parse_path_id)]
