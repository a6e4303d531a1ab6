"""The text of eml files: the main headers, the body, and the names of attachments."""

from email import message_from_bytes, policy
from email.message import MIMEPart
from typing import Any, Final

from worker.extract.draft import TextBuilder, refuse_corrupt
from worker.extract.markup import write_html

_HEADERS: Final = ("From", "To", "Cc", "Date", "Subject")


def read_eml(data: bytes, draft: TextBuilder) -> None:
    """Read an eml, its plain text if it has one."""
    message = message_from_bytes(data, policy=policy.default)
    if not any(name in message for name in _HEADERS):
        refuse_corrupt("The message has no headers.")
    draft.set_title(str(message.get("Subject", "")))
    for header in _HEADERS:
        if shown := str(message.get(header, "")).strip():
            draft.write(f"{header}: {shown}\n")
    draft.write("\n")
    body = message.get_body(preferencelist=("plain", "html"))
    if body is not None:
        _write_body(body, draft)
    names = [name for part in message.iter_attachments() if (name := part.get_filename())]
    if names:
        draft.write("\n\nAttachments: " + ", ".join(names) + "\n")


def _write_body(body: "MIMEPart[Any, Any]", draft: TextBuilder) -> None:
    content = body.get_content()
    text = content if isinstance(content, str) else ""
    if body.get_content_subtype() == "html":
        write_html(text, draft)
    else:
        draft.write(text)
