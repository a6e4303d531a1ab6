"""The console's pages of extractions: the list, and one."""

from fastapi import APIRouter

from api.console.error_pages import PageRoute
from api.console.extractions import extraction, listing

router = APIRouter(include_in_schema=False, route_class=PageRoute)
for _part in (listing, extraction):
    router.include_router(_part.router)
