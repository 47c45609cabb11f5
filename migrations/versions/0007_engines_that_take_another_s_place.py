"""engines that take another's place

A migration must work with the previous release still running, and with rows in the tables.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("rollout_turns") as batch:
        batch.add_column(sa.Column("successor", sa.String(), server_default="", nullable=False))


def downgrade() -> None:
    with op.batch_alter_table("rollout_turns") as batch:
        batch.drop_column("successor")
