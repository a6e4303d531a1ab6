"""The list of extractions."""

from typing import Final

from api.console.subjects.kinds import SUBJECTS
from api.console.subjects.listing import SubjectList, list_routes
from api.console.subjects.rows import read_rows
from jobs.states.summary import Purpose

PAGES: Final = SUBJECTS[Purpose.EXTRACTION]

router = list_routes(SubjectList(PAGES, "Extractions", "extractions/list.html", read_rows))
