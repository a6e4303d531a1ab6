"""The console's pages of documents: the list, and one with its text."""

from fastapi import APIRouter

from api.console.documents import document, listing
from api.console.error_pages import PageRoute

router = APIRouter(include_in_schema=False, route_class=PageRoute)
for _part in (listing, document):
    router.include_router(_part.router)
