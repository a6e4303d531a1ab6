"""The policy of webhook deliveries looks at their own tenant first: a page of them reads no table of events.

Expand only. The policy compared each delivery with all events of the tenant: 480 ms for 50 of 170,000
deliveries beside 344,000 events, and 0.1 ms now. Rows of releases that wrote no tenant are found as before.
"""

from alembic import op

revision = "0043"
down_revision = "0042"
branch_labels = None
depends_on = None

_MINE = "ANY ((SELECT string_to_array(nullif(current_setting('app.tenant_ids', true), ''), ','))::uuid[])"
_THROUGH_EVENT = "EXISTS (SELECT FROM webhook_events WHERE webhook_events.id = event_id)"


def upgrade() -> None:
    _alter(f"tenant_id = {_MINE} OR (tenant_id IS NULL AND {_THROUGH_EVENT})")


def downgrade() -> None:
    _alter(_THROUGH_EVENT)


def _alter(condition: str) -> None:
    """Change the policy; a database that has none yet gets it after the upgrade."""
    op.execute(
        "DO $$ BEGIN IF EXISTS (SELECT FROM pg_policy WHERE polname = 'tenant'"
        " AND polrelid = 'webhook_deliveries'::regclass) THEN"
        f" ALTER POLICY tenant ON webhook_deliveries USING ({condition}); END IF; END $$"
    )
