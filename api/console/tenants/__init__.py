"""Pages of tenants: their limits, queues and API keys."""

from fastapi import APIRouter

from api.console.error_pages import PageRoute
from api.console.tenants import keys, queue, tenant, tenants

router = APIRouter(include_in_schema=False, route_class=PageRoute)
for _part in (tenants, tenant, queue, keys):
    router.include_router(_part.router)
