"""Which rows each role may see: roles, grants and row-level security, brought up to date after every upgrade.

Not a revision, as it must cover tables that later revisions add and roles that are created later. It locks
and writes nothing if everything is in place.
"""

from sqlalchemy import Connection, text

from jobs.tenants.isolation import APP_ROLE, TENANT_SETTING, WORKER_ROLE

_MINE = f"ANY ((SELECT string_to_array(nullif(current_setting('{TENANT_SETTING}', true), ''), ','))::uuid[])"
# Rows of earlier releases have no tenant of their own; before revision 0007 there is no column for it.
_THROUGH_EVENT = "EXISTS (SELECT FROM webhook_events WHERE webhook_events.id = event_id)"
# Tables without tenant_id: another table, which has its policy already, names the owner of a row.
_THROUGH_ANOTHER = {
    "tenants": f"id = {_MINE}",
    "attempts": "EXISTS (SELECT FROM jobs WHERE jobs.id = job_id)",
    "results": "EXISTS (SELECT FROM jobs WHERE jobs.id = job_id)",
    "checkpoints": "EXISTS (SELECT FROM jobs WHERE jobs.id = job_id)",
    "webhook_deliveries": _THROUGH_EVENT,
}
# Tables that belong to no tenant; the API may read them.
SHARED = ("engines", "adapters")
_ROLES = (APP_ROLE, WORKER_ROLE)


def apply(connection: Connection) -> None:
    """Give tables their policies, and roles their rights.

    Every table with a tenant has policies then; a role that does not exist is skipped.
    """
    if connection.scalar(text("SELECT to_regclass('tenants')")) is None:
        return
    existing = [role for role in _ROLES if _ensure_role(connection, role)]
    own = text(
        "SELECT c.relname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid"
        " WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'p')"
        " AND a.attname = 'tenant_id' AND NOT a.attisdropped ORDER BY 1"
    )
    owned = dict.fromkeys(connection.scalars(own), f"tenant_id = {_MINE}")
    conditions = owned | _THROUGH_ANOTHER
    if "webhook_deliveries" in owned:
        conditions["webhook_deliveries"] = f"tenant_id = {_MINE} OR (tenant_id IS NULL AND {_THROUGH_EVENT})"
    for table, condition in conditions.items():
        if connection.scalar(text("SELECT to_regclass(:table)"), {"table": table}) is not None:
            _protect(connection, table, condition, existing)
    if APP_ROLE in existing:
        for table in SHARED:
            if connection.scalar(text("SELECT to_regclass(:table)"), {"table": table}) is not None:
                _grant(connection, "SELECT", table, APP_ROLE)
    if WORKER_ROLE in existing:
        tables = text(
            "SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace"
            " AND relkind IN ('r', 'p') ORDER BY 1"
        )
        for table in connection.scalars(tables).all():
            _grant(connection, "SELECT, INSERT, UPDATE, DELETE", table, WORKER_ROLE)


def _ensure_role(connection: Connection, role: str) -> bool:
    """Create the role if it is missing and this login may.

    Roles belong to the whole server, so they are never dropped.

    Returns:
        True if the role exists now.
    """
    known = text("SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = :role)")
    if not connection.scalar(known, {"role": role}):
        may = "SELECT rolsuper OR rolcreaterole FROM pg_roles WHERE rolname = current_user"
        if not connection.scalar(text(may)):
            return False
        connection.execute(
            text(f"DO $$ BEGIN CREATE ROLE {role} NOLOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
        )
        # So that a single login for everything can take the role even if it is no superuser.
        connection.execute(text(f"GRANT {role} TO CURRENT_USER"))
    usable = text("SELECT has_schema_privilege(:role, current_schema()::text, 'USAGE')")
    if not connection.scalar(usable, {"role": role}):
        schema = connection.scalar(text("SELECT quote_ident(current_schema()::text)"))
        connection.execute(text(f"GRANT USAGE ON SCHEMA {schema} TO {role}"))
    return True


def _protect(connection: Connection, table: str, condition: str, roles: list[str]) -> None:
    policies = set(
        connection.scalars(
            text("SELECT polname FROM pg_policy WHERE polrelid = to_regclass(:table)"), {"table": table}
        )
    )
    if "tenant" not in policies:
        connection.execute(text(f"CREATE POLICY tenant ON {table} USING ({condition})"))
    enabled = text("SELECT relrowsecurity FROM pg_class WHERE oid = to_regclass(:table)")
    if not connection.scalar(enabled, {"table": table}):
        connection.execute(text(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY"))
    if WORKER_ROLE in roles and "across_tenants" not in policies:
        across = f"CREATE POLICY across_tenants ON {table} TO {WORKER_ROLE} USING (true)"
        connection.execute(text(across))
    if APP_ROLE in roles:
        for right in _rights_of_app(table):
            _grant(connection, right, table, APP_ROLE)


def _rights_of_app(table: str) -> list[str]:
    """Return what the API may do to a tenant's rows; operators write keys and limits."""
    match table:
        case (
            "tenants"
            | "tenant_limits"
            | "usage_days"
            | "accounts"
            | "account_shards"
            | "stored_notes"
            | "stored_totals"
        ):
            return ["SELECT"]
        case "audit_log":
            return ["SELECT, INSERT"]
        case "api_keys":
            return ["SELECT (id, tenant_id, last_used_at)", "UPDATE (last_used_at)"]
        case _:
            return ["SELECT, INSERT, UPDATE, DELETE"]


def _grant(connection: Connection, rights: str, table: str, role: str) -> None:
    """Grant the rights to the role if it lacks one of them."""
    if "(" not in rights:
        has_all = " AND ".join(
            f"has_table_privilege(:role, to_regclass(:table), '{right}')" for right in rights.split(", ")
        )
        if connection.scalar(text(f"SELECT {has_all}"), {"role": role, "table": table}):
            return
    connection.execute(text(f"GRANT {rights} ON {table} TO {role}"))
