"""Answers of a certain form: what each job is guided by, and what engines can be asked for.

Expand only: columns that are nullable or constant, an index built beside writers. Engines whose worker is of
the release before have told nothing, and are asked for nothing new.
"""

from alembic import op

from migrations import online

revision = "0040"
down_revision = "0038"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # The rows that are there have none, so the foreign key reads none of them.
    op.execute("ALTER TABLE jobs ADD COLUMN IF NOT EXISTS guide_id uuid")
    op.execute("ALTER TABLE jobs DROP CONSTRAINT IF EXISTS fk_jobs_guide_id")
    op.execute(
        "ALTER TABLE jobs ADD CONSTRAINT fk_jobs_guide_id"
        " FOREIGN KEY (guide_id) REFERENCES texts (id) NOT VALID"
    )
    op.execute("ALTER TABLE jobs ADD COLUMN IF NOT EXISTS is_whole boolean DEFAULT false NOT NULL")
    online.commit()
    op.execute("ALTER TABLE engines ADD COLUMN IF NOT EXISTS takes text[]")
    online.commit()
    online.create_index("ix_jobs_guide_id", "jobs", ["guide_id"], where="guide_id IS NOT NULL")
    online.validate("jobs", "fk_jobs_guide_id")


def downgrade() -> None:
    online.drop_index("ix_jobs_guide_id", "jobs")
    op.drop_column("engines", "takes", if_exists=True)
    op.drop_column("jobs", "is_whole", if_exists=True)
    op.drop_column("jobs", "guide_id", if_exists=True)
