"""How many files and connections a process may have open: raised at start, reported if too low."""

import resource
from typing import Final

from jobs import telemetry
from jobs.settings import Settings

# Linux refuses more by default (fs.nr_open). With a hard limit of a billion, child programs that walk over
# every descriptor they could have would take minutes.
_MAX: Final = 2**20
# Standard streams, the event loop, logs, modules being loaded, name look-ups, connections to Redis.
RESERVE: Final = 64
# Batch slots of an engine if the settings name none: as many as large deployments of TensorRT-LLM have.
_NUM_SLOTS: Final = 256
_FILES_OF_A_SLOT: Final = 2  # its connection, and one that ends while the next begins
_FILES_OF_AN_EXTRACTION: Final = 6  # pipes of its process, its bytes


def raise_limit() -> int:
    """Raise the soft limit to the hard one.

    An ordinary account has a soft limit of 1024, for programs that use select(2); nothing here does.

    Returns:
        The soft limit from now on; the old one if the system refuses.
    """
    soft, hard = (_bounded(each) for each in resource.getrlimit(resource.RLIMIT_NOFILE))
    if soft >= hard:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    except (OSError, ValueError):  # macOS refuses more than kern.maxfilesperproc
        return soft
    return hard


def raise_for(process: str, *, needed: int) -> int:
    """Raise the soft limit to the hard one, and warn if the process may need more.

    Args:
        process: its name in the log.
        needed: files and connections by its settings, without `RESERVE`.

    Returns:
        The soft limit from now on.
    """
    available = raise_limit()
    if available < needed + RESERVE:
        telemetry.logger().warning(
            telemetry.OPEN_FILES_LIMIT_LOW, process=process, needed=needed + RESERVE, available=available
        )
    return available


def of_api(settings: Settings) -> int:
    """Count what one API process may have open."""
    return settings.api.max_connections + settings.database.pool_size


def of_service_worker(settings: Settings) -> int:
    """Count what one service worker may have open."""
    documents = settings.documents
    at_once = documents.concurrency + (documents.extractor_concurrency if documents.extractor_url else 0)
    extractions = at_once * _FILES_OF_AN_EXTRACTION
    return settings.webhooks.concurrency + extractions + settings.database.pool_size


def of_inference_worker(settings: Settings) -> int:
    """Count what one inference worker may have open."""
    slots = settings.engine.max_batch_size or _NUM_SLOTS
    return slots * _FILES_OF_A_SLOT + settings.database.pool_size


def limits() -> tuple[int, int]:
    """Return the soft and the hard limit, each cut to `_MAX`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _bounded(soft), _bounded(hard)


def _bounded(limit: int) -> int:
    return _MAX if limit == resource.RLIM_INFINITY else min(limit, _MAX)
