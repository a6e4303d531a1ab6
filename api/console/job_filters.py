"""The filters of the list of jobs, as they are in its address."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from api.console.lists import ListQuery, RowList
from jobs import ids
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
LIST: Final = "/console/jobs"
JOBS: Final = RowList(
    LIST,
    ids.JOB,
    filters=("state", "lane", "age", "batch", "tenant"),
    values={"state": STATES, "lane": LANES, "age": tuple(AGES)},
    ids={"batch": ids.BATCH},
)


def filter_of(query: ListQuery, *, now: datetime) -> JobFilter:
    """Translate the filters of an address; ages count from `now`."""
    age = query.chosen.get("age")
    _, since, until = AGES[age] if age else ("", None, None)
    return JobFilter(
        state=query.chosen.get("state"),
        lane=query.chosen.get("lane"),
        batch_id=query.ids["batch"],
        since=now - since if since else None,
        until=now - until if until else None,
    )
