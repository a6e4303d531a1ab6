"""The console's pages of batches: the list, one with its files, and what is done with it."""

from fastapi import APIRouter

from api.console.batches import actions, batch, listing
from api.console.error_pages import PageRoute

router = APIRouter(include_in_schema=False, route_class=PageRoute)
for _part in (listing, batch, actions):
    router.include_router(_part.router)
