"""Which rows a transaction can reach: a condition in every query, and row-level security as a second wall.

A session bound to tenants has two walls. The first is here: each query on a table with `tenant_id` gets the
condition, whether or not its author thought of it. The second is in Postgres: the transaction takes the role
of the API, whose policies read the tenants from a setting of the transaction.
"""

from collections.abc import Collection
from typing import Any, Final
from uuid import UUID

from sqlalchemy import ColumnElement, event, text
from sqlalchemy.orm import InstrumentedAttribute, Mapper, ORMExecuteState, Session, with_loader_criteria

from jobs.database import statements
from jobs.database.statements import Statement
from jobs.models import Base, Tenant

# Roles of the database. The API takes one of them in each transaction. Workers log in as a member of the
# second, or as the owner of the tables, which row-level security does not bind either.
APP_ROLE: Final = "longbatch_app"
WORKER_ROLE: Final = "longbatch_worker"
TENANT_SETTING: Final = "app.tenant_ids"

_BOUND_TO: Final = "longbatch.tenant_ids"
_ROLES: Final = "longbatch.roles"
_MAY_TAKE = text("SELECT rolname FROM pg_roles WHERE rolname = ANY(:roles) AND pg_has_role(oid, :right)")
_SET_TENANTS: Final = f"SELECT set_config('{TENANT_SETTING}', %(tenant_ids)s::text, true)"
_SET_ROLE: Final = ", set_config('role', %(role)s::text, true)"
_SET_READ_ONLY: Final = ", set_config('transaction_read_only', 'on', true)"
_SET_ROLE_SINCE: Final = (16, 0)  # before 16, every member of a role may take it


class TenantSession(Session):
    """A session whose queries reach no other tenant's rows once `enter` has bound it."""


def enter(session: Session, tenant_ids: Collection[UUID]) -> None:
    """Bind the transaction to the rows of these tenants.

    Call it at the beginning.
    """
    session.info[_BOUND_TO] = frozenset(tenant_ids)
    _take(session, APP_ROLE, _SET_TENANTS, tenant_ids=",".join(str(each) for each in tenant_ids))


def tenants_of(session: Session) -> frozenset[UUID] | None:
    """Return the tenants that the session is bound to; None: to none, it reaches all rows."""
    found: frozenset[UUID] | None = session.info.get(_BOUND_TO)
    return found


def enter_across(session: Session) -> None:
    """Let the transaction read the rows of all tenants and write nothing.

    Call it at the beginning.
    """
    _take(session, WORKER_ROLE, _SET_TENANTS + _SET_READ_ONLY, tenant_ids="")


def enter_as_operator(session: Session) -> None:
    """Let the transaction read and write the rows of all tenants; for routes that need the scope `operator`.

    Call it at the beginning.
    """
    _take(session, WORKER_ROLE, _SET_TENANTS, tenant_ids="")


def is_bound(session: Session) -> bool:
    """Tell whether row-level security binds the API: this login may take both roles."""
    return len(_roles(session)) == len({APP_ROLE, WORKER_ROLE})


def describe(is_bound: bool) -> str:  # noqa: FBT001  # what `is_bound` found
    """Describe what `is_bound` found, for operators."""
    if is_bound:
        return "row-level security binds the API"
    return (
        f"row-level security does not bind the API: its login cannot take the roles {APP_ROLE} and"
        f" {WORKER_ROLE}, so tenants are kept apart by its queries alone"
    )


def _take(session: Session, role: str, sql: str, *, tenant_ids: str) -> None:
    if is_bound(session):
        sql += _SET_ROLE
    statements.fetch(session, Statement(sql), {"tenant_ids": tenant_ids, "role": role})


def _roles(session: Session) -> frozenset[str]:
    """Read which of the roles this login may take, once per connection."""
    connection = session.connection()
    if _ROLES not in connection.info:
        version = connection.dialect.server_version_info or (0,)
        right = "SET" if version >= _SET_ROLE_SINCE else "MEMBER"
        found = connection.scalars(_MAY_TAKE, {"roles": [APP_ROLE, WORKER_ROLE], "right": right})
        connection.info[_ROLES] = frozenset(found)
    roles: frozenset[str] = connection.info[_ROLES]
    return roles


@event.listens_for(TenantSession, "do_orm_execute")
def _add_conditions(state: ORMExecuteState) -> None:
    """Add the condition to tables whose rows the statement reads or changes.

    Tables that it only mentions have the second wall.
    """
    tenant_ids = tenants_of(state.session)
    is_bound_kind = state.is_orm_statement and (state.is_select or state.is_update or state.is_delete)
    if tenant_ids is None or not is_bound_kind:
        return
    for mapper in state.all_mappers or Base.registry.mappers:  # no mappers: it counts, or the like
        column = _tenant_column(mapper)
        if column is not None:
            condition = _is_one_of(column, tenant_ids)
            option = with_loader_criteria(mapper.class_, condition, include_aliases=True)
            state.statement = state.statement.options(option)


def _tenant_column(mapper: Mapper[Any]) -> InstrumentedAttribute[UUID] | None:
    """Find the column that names the tenant of a row.

    Returns:
        None if the table's rows belong to no tenant, or another table names it.
    """
    column: InstrumentedAttribute[UUID] | None = (
        Tenant.id if mapper.class_ is Tenant else getattr(mapper.class_, "tenant_id", None)
    )
    return column


def _is_one_of(column: InstrumentedAttribute[UUID], tenant_ids: Collection[UUID]) -> ColumnElement[bool]:
    (first, *others) = tenant_ids
    # One tenant: equality lets the planner read an index in its order.
    return column.in_(tenant_ids) if others else column == first
