"""Who looks at the console."""

from collections.abc import Iterator

import pytest
from sqlalchemy.orm import Session, sessionmaker

from api_server import ApiProcess
from console_pages.browser import Browser, browsing, new_key
from jobs.tenants.keys import Scope


@pytest.fixture
def visitor(server: ApiProcess, sessions: sessionmaker[Session]) -> Iterator[Browser]:
    """Someone of the default tenant who may change what is its own."""
    with browsing(server, new_key(sessions, Scope.READ, Scope.SUBMIT).secret) as signed_in:
        yield signed_in
