"""The console's pages of webhooks: endpoints, deliveries, events, and what is done with them."""

from fastapi import APIRouter

from api.console.error_pages import PageRoute
from api.console.webhooks import deliveries, editing, endpoints, event

router = APIRouter(include_in_schema=False, route_class=PageRoute)
for _part in (endpoints, editing, deliveries, event):
    router.include_router(_part.router)
