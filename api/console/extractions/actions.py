"""What is done with one extraction: cancel it, delete it."""

from api.console.extractions.listing import PAGES
from api.console.subjects.actions import SubjectActions, action_routes
from api.extractions import verbs

router = action_routes(
    SubjectActions(
        PAGES,
        verbs.cancel,
        name="the extraction",
        cancelled="The extraction is being cancelled.",
        deletion="The extraction and its jobs are deleted. The document stays.",
        deleted="The extraction is deleted.",
    )
)
