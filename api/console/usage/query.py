"""The days and the tenant of a page of usage, as they are in its address."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Final
from uuid import UUID

from api.console.session import Viewer
from api.runtime.services import Services
from jobs import tenants
from jobs.errors import InvalidRequestError, NotFoundError
from jobs.tenants import usage

# Days of all tenants together: a quarter, of which the database sums the rows of some hundred in 50 ms.
_MAX_DAYS_OF_ALL: Final = 92


@dataclass(frozen=True, slots=True)
class UsageQuery:
    """What the address asks for.

    Attributes:
        tenant: its name, as the address has it; None: all that the viewer sees.
        tenant_id: whose usage; None: that of all.
    """

    first: date
    last: date
    tenant: str | None
    tenant_id: UUID | None

    @property
    def fields(self) -> dict[str, str | None]:
        """The query as it is in the address."""
        return {"start": self.first.isoformat(), "end": self.last.isoformat(), "tenant": self.tenant}


async def parse_query(given: Mapping[str, str], services: Services, viewer: Viewer) -> UsageQuery:
    """Read the range of days, and for operators the tenant.

    Raises:
        InvalidRequestError: a day is none, or the range is too long or ends before it begins.
        NotFoundError: there is no such tenant, or the viewer may not choose one.
    """
    today = datetime.now(UTC).date()
    first, last = usage.period(_day(given, "start"), _day(given, "end"), today=today)
    name = given.get("tenant", "").strip()
    if not viewer.is_operator:
        if name not in ("", viewer.tenant_name):
            raise NotFoundError("There is no such tenant.")
        return UsageQuery(first, last, None, viewer.caller.tenant_id)
    if name:
        row = await services.transactions.run_across(partial(tenants.find, text=name))
        return UsageQuery(first, last, row.name, row.id)
    if last - first >= timedelta(days=_MAX_DAYS_OF_ALL):
        raise InvalidRequestError(
            f"At most {_MAX_DAYS_OF_ALL} days of all tenants together; choose a tenant for more.",
            param="start",
        )
    return UsageQuery(first, last, None, None)


def _day(given: Mapping[str, str], name: str) -> date | None:
    text = given.get(name, "").strip()
    try:
        return date.fromisoformat(text) if text else None
    except ValueError:
        raise InvalidRequestError(f"{name}: Must be a day such as 2026-01-31.", param=name) from None
