"""Who looks at the console: one who may change things, one who may only read, a stranger, an operator."""

from collections.abc import Iterator

import pytest
from sqlalchemy.orm import Session, sessionmaker

from api_server import ApiProcess
from console_pages.browser import Browser, browsing, new_key, new_tenant
from jobs.tenants.keys import Scope


@pytest.fixture
def visitor(server: ApiProcess, sessions: sessionmaker[Session]) -> Iterator[Browser]:
    """Someone of the default tenant who may change what is its own."""
    with browsing(server, new_key(sessions, Scope.READ, Scope.SUBMIT).secret) as signed_in:
        yield signed_in


@pytest.fixture
def reader(server: ApiProcess, sessions: sessionmaker[Session]) -> Iterator[Browser]:
    """Someone of the default tenant with a key that may only read."""
    with browsing(server, new_key(sessions, Scope.READ).secret) as signed_in:
        yield signed_in


@pytest.fixture
def stranger(server: ApiProcess, sessions: sessionmaker[Session]) -> Iterator[Browser]:
    """Someone of another tenant, who may change what is its own."""
    key = new_key(sessions, Scope.READ, Scope.SUBMIT, tenant_id=new_tenant(sessions))
    with browsing(server, key.secret) as signed_in:
        yield signed_in


@pytest.fixture
def operator(server: ApiProcess, sessions: sessionmaker[Session]) -> Iterator[Browser]:
    """Someone who sees the rows of all tenants, and changes none."""
    with browsing(server, new_key(sessions, Scope.READ, Scope.OPERATOR).secret) as signed_in:
        yield signed_in
