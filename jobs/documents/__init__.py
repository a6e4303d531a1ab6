"""Documents: what callers do with them; see kinds, extraction, queries and views for the rest."""

from jobs.documents.lifecycle import (
    NewDocument,
    create_file,
    drop_files,
    expire,
    finish_upload,
    get,
    iterate_text,
    list_documents,
    load_body,
    load_text,
    prune,
    remove,
    visible,
    wake_summaries,
)
