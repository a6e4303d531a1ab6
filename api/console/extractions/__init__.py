"""The console's pages of extractions: the list, one, those made together, and a new one."""

from fastapi import APIRouter

from api.console.error_pages import PageRoute
from api.console.extractions import actions, extraction, listing, new, table

router = APIRouter(include_in_schema=False, route_class=PageRoute)
for _part in (listing, new, extraction, table, actions):
    router.include_router(_part.router)
