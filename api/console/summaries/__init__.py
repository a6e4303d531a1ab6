"""The console's pages of summaries: the list, one, its parts beside their sources, and a new one."""

from fastapi import APIRouter

from api.console.error_pages import PageRoute
from api.console.summaries import actions, listing, new, part, summary

router = APIRouter(include_in_schema=False, route_class=PageRoute)
for _part in (listing, new, summary, part, actions):
    router.include_router(_part.router)
