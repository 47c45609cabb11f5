"""a fleet that was edited no longer follows the settings

A migration must work with the previous release still running, and with rows in the tables.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Fleets of before followed them; nobody could edit one.
    op.add_column("fleets", sa.Column("follows_settings", sa.Boolean(), nullable=False, server_default=sa.true()))


def downgrade() -> None:
    with op.batch_alter_table("fleets") as table:
        table.drop_column("follows_settings")
