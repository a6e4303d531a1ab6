"""The filters of the list of jobs, as they are in its address."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from api.console import formats
from api.http.identifiers import parse_optional
from jobs import ids
from jobs.errors import InvalidRequestError
from jobs.queries import JobFilter
from jobs.states import JobState, Lane

STATES: Final = tuple(JobState)
LANES: Final = tuple(Lane)
_HOUR: Final = timedelta(hours=1)
_DAY: Final = timedelta(days=1)
# By name: what the form shows, since how long ago, until how long ago.
AGES: Final[Mapping[str, tuple[str, timedelta | None, timedelta | None]]] = {
    "hour": ("in the last hour", _HOUR, None),
    "day": ("in the last day", _DAY, None),
    "week": ("in the last week", 7 * _DAY, None),
    "over-hour": ("over an hour ago", None, _HOUR),
    "over-day": ("over a day ago", None, _DAY),
}
_NAMES: Final = ("state", "lane", "age", "batch", "tenant")


@dataclass(frozen=True, slots=True)
class JobsQuery:
    """What the address of the list asks for.

    Attributes:
        tenant: its name; only operators may choose. None: all that the viewer sees.
        after: the page goes on after this job.
    """

    state: str | None = None
    lane: str | None = None
    age: str | None = None
    batch: str | None = None
    tenant: str | None = None
    after: UUID | None = None

    @property
    def fields(self) -> dict[str, str | None]:
        """The filters as they are in the address, without the place."""
        return {name: getattr(self, name) for name in _NAMES}

    @property
    def is_filtered(self) -> bool:
        """Whether anything but the tenant is chosen."""
        return any((self.state, self.lane, self.age, self.batch))

    def filter(self, *, now: datetime) -> JobFilter:
        """Translate the filters; ages count from `now`."""
        _, since, until = AGES[self.age] if self.age else ("", None, None)
        return JobFilter(
            state=self.state,
            lane=self.lane,
            batch_id=ids.parse_batch_id(self.batch) if self.batch else None,
            since=now - since if since else None,
            until=now - until if until else None,
        )

    def only(self, state: str) -> "JobsQuery":
        """Return the same with this state, from the start."""
        return replace(self, state=state, after=None)


def parse_query(given: Mapping[str, str]) -> JobsQuery:
    """Read the filters of an address or a form; empty ones are not chosen.

    Raises:
        InvalidRequestError: a value is none that the form offers.
    """
    chosen = formats.chosen(given, (*_NAMES, "after"))
    for name, allowed in (("state", STATES), ("lane", LANES), ("age", tuple(AGES))):
        if name in chosen and chosen[name] not in allowed:
            raise InvalidRequestError(f"The filter {name!r} has none of its values.", param=name)
    parse_optional(chosen.get("batch"), ids.parse_batch_id, param="batch", message="There is no such batch.")
    after = parse_optional(
        chosen.pop("after", None), ids.parse_job_id, param="after", message="There is no such page."
    )
    return JobsQuery(after=after, **chosen)
