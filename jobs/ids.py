"""Ids: UUIDv7 made by the client side, printed with a prefix that names the kind."""

import re
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from uuid_utils import compat

from jobs.errors import NotFoundError

uuid7 = compat.uuid7


def first_uuid7(moment: datetime) -> UUID:
    """Return the smallest UUIDv7 of a moment: ids made before it are smaller, those made later greater."""
    milliseconds = max(0, int(moment.timestamp() * 1000))
    return UUID(int=milliseconds << 80)


@dataclass(frozen=True, slots=True)
class IdKind:
    """A kind of id, printed as its prefix and 32 hex digits."""

    name: str
    prefix: str

    def format(self, value: UUID) -> str:
        """Print the id."""
        return self.prefix + value.hex

    def parse(self, text: str) -> UUID:
        """Parse a printed id.

        Raises:
            NotFoundError: the text is not an id of this kind, so nothing has it.
        """
        if re.fullmatch(f"{self.prefix}[0-9a-f]{{32}}", text):
            return UUID(hex=text.removeprefix(self.prefix))
        raise NotFoundError(f"There is no {self.name} {text[:64]!r}.")


JOB = IdKind("job", "job_")
ATTEMPT = IdKind("attempt", "att_")
EVENT = IdKind("event", "evt_")
ENDPOINT = IdKind("webhook endpoint", "whep_")
DELIVERY = IdKind("webhook delivery", "whdl_")
FILE = IdKind("file", "file-")
BATCH = IdKind("batch", "batch_")
SUMMARY = IdKind("summary", "sum_")
ANSWERS = IdKind("set of answers", "ans_")
EXTRACTION = IdKind("extraction", "ext_")
DOCUMENT = IdKind("document", "doc_")
TENANT = IdKind("tenant", "tenant_")
RESPONSE = IdKind("response", "resp_")
AUDIT = IdKind("audit entry", "audit_")

job_id, parse_job_id = JOB.format, JOB.parse
event_id, parse_event_id = EVENT.format, EVENT.parse
endpoint_id, parse_endpoint_id = ENDPOINT.format, ENDPOINT.parse
delivery_id, parse_delivery_id = DELIVERY.format, DELIVERY.parse
file_id, parse_file_id = FILE.format, FILE.parse
batch_id, parse_batch_id = BATCH.format, BATCH.parse
summary_id, parse_summary_id = SUMMARY.format, SUMMARY.parse
answers_id, parse_answers_id = ANSWERS.format, ANSWERS.parse
extraction_id, parse_extraction_id = EXTRACTION.format, EXTRACTION.parse
document_id, parse_document_id = DOCUMENT.format, DOCUMENT.parse
tenant_id, parse_tenant_id = TENANT.format, TENANT.parse
response_id, parse_response_id = RESPONSE.format, RESPONSE.parse
