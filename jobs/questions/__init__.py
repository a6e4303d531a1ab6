"""Questions: what callers do with their answers; see settling, prompts and views for the rest."""

from jobs.questions.lifecycle import DocumentsSpec, create, get, list_answers, remove
