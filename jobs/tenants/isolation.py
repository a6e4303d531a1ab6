"""Whose rows a transaction can reach: bound to tenants in every query, and by row-level security behind that.

A session bound to tenants has two walls. The first stands here: each query on a table with `tenant_id` gets
the condition, whether or not its author thought of it. The second stands in Postgres: the transaction takes
the role of the API, whose policies know the tenants by a setting of the transaction.
"""

from collections.abc import Collection
from typing import Any, Final
from uuid import UUID

from sqlalchemy import ColumnElement, event, text
from sqlalchemy.orm import InstrumentedAttribute, Mapper, ORMExecuteState, Session, with_loader_criteria

from jobs.models import Base, Tenant

# Roles of the database. The API takes one of them in each transaction; workers may log in as a member of the
# second, or as the owner of the tables, who is not bound either.
APP_ROLE: Final = "longbatch_app"
WORKER_ROLE: Final = "longbatch_worker"
TENANT_SETTING: Final = "app.tenant_ids"

_BOUND_TO: Final = "longbatch.tenant_ids"
_ROLES: Final = "longbatch.roles"
_MAY_TAKE = text("SELECT rolname FROM pg_roles WHERE rolname = ANY(:roles) AND pg_has_role(oid, :right)")
# For the driver: once for each transaction, so not through a compiler.
_SET_TENANTS: Final = f"SELECT set_config('{TENANT_SETTING}', %(tenant_ids)s, true)"
_SET_ROLE: Final = ", set_config('role', %(role)s, true)"
_SET_READ_ONLY: Final = ", set_config('transaction_read_only', 'on', true)"
_SET_ROLE_SINCE: Final = (16, 0)  # before it, every member of a role may take it


class TenantSession(Session):
    """A session whose queries reach no other tenant's rows once `enter` has bound it."""


def enter(session: Session, tenant_ids: Collection[UUID]) -> None:
    """The transaction reaches the rows of these tenants alone; to be called at its beginning."""
    session.info[_BOUND_TO] = frozenset(tenant_ids)
    _take(session, APP_ROLE, _SET_TENANTS, tenant_ids=",".join(str(each) for each in tenant_ids))


def enter_across(session: Session) -> None:
    """The transaction reads the rows of all tenants, and writes nothing; to be called at its beginning."""
    _take(session, WORKER_ROLE, _SET_TENANTS + _SET_READ_ONLY, tenant_ids="")


def is_bound(session: Session) -> bool:
    """Whether this login may take both roles, so that row-level security binds what the API does."""
    return len(_roles(session)) == len({APP_ROLE, WORKER_ROLE})


def describe(is_bound: bool) -> str:  # noqa: FBT001  # what `is_bound` said
    """The same in words, for operators."""
    if is_bound:
        return "row-level security binds the API"
    return (
        f"row-level security does not bind the API: its login cannot take the roles {APP_ROLE} and"
        f" {WORKER_ROLE}, so tenants are kept apart by its queries alone"
    )


def _take(session: Session, role: str, statement: str, *, tenant_ids: str) -> None:
    if is_bound(session):
        statement += _SET_ROLE
    session.connection().exec_driver_sql(statement, {"tenant_ids": tenant_ids, "role": role})


def _roles(session: Session) -> frozenset[str]:
    """The roles that this login may take; looked up once for each connection."""
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
    """Of the tables whose rows the statement asks for; those that it only looks at have the second wall."""
    tenant_ids: frozenset[UUID] | None = state.session.info.get(_BOUND_TO)
    is_bound_kind = state.is_orm_statement and (state.is_select or state.is_update or state.is_delete)
    if tenant_ids is None or not is_bound_kind:
        return
    for mapper in state.all_mappers or Base.registry.mappers:  # none: it counts, or the like
        column = _tenant_column(mapper)
        if column is not None:
            condition = _is_one_of(column, tenant_ids)
            option = with_loader_criteria(mapper.class_, condition, include_aliases=True)
            state.statement = state.statement.options(option)


def _tenant_column(mapper: Mapper[Any]) -> InstrumentedAttribute[UUID] | None:
    """What says whose a row is; None: the table's rows are nobody's, or another table says it."""
    column: InstrumentedAttribute[UUID] | None = (
        Tenant.id if mapper.class_ is Tenant else getattr(mapper.class_, "tenant_id", None)
    )
    return column


def _is_one_of(column: InstrumentedAttribute[UUID], tenant_ids: Collection[UUID]) -> ColumnElement[bool]:
    (first, *others) = tenant_ids
    # Equality for one: the planner can then read an index in its order.
    return column.in_(tenant_ids) if others else column == first
