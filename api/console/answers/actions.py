"""What is done with the answers of one document: cancel them, delete them."""

from api.answers import verbs
from api.console.answers.listing import PAGES
from api.console.subjects.actions import SubjectActions, action_routes

router = action_routes(
    SubjectActions(
        PAGES,
        verbs.cancel,
        name="the answers",
        cancelled="The answers are being cancelled.",
        deletion="The answers of this document and their jobs are deleted. The document stays.",
        deleted="The answers are deleted.",
    )
)
