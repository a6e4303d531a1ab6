"""Pages of usage: by day, model and tenant, as table, curve and CSV."""

from fastapi import APIRouter

from api.console.error_pages import PageRoute
from api.console.usage import download, usage

router = APIRouter(include_in_schema=False, route_class=PageRoute)
for _part in (usage, download):
    router.include_router(_part.router)
