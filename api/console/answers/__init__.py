"""The console's pages of answers: the list, one, one question, those asked together, and new questions."""

from fastapi import APIRouter

from api.console.answers import actions, answers, listing, new, question, table
from api.console.error_pages import PageRoute

router = APIRouter(include_in_schema=False, route_class=PageRoute)
for _part in (listing, new, answers, question, table, actions):
    router.include_router(_part.router)
