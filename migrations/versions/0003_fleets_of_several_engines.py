"""what a fleet gives its engines, the devices of each, and going out of service

A migration must work with the previous release still running, and with rows in the tables.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # The release before writes rows without these: each has a default, or may be missing.
    op.add_column("fleets", sa.Column("base_flags", sa.JSON(), nullable=False, server_default="{}"))
    op.add_column("fleets", sa.Column("environment", sa.JSON(), nullable=False, server_default="{}"))
    op.add_column("fleets", sa.Column("devices", sa.JSON(), nullable=False, server_default="[]"))
    op.add_column("fleets", sa.Column("port_from", sa.Integer(), nullable=True))
    op.add_column("fleets", sa.Column("port_to", sa.Integer(), nullable=True))
    op.add_column("fleets", sa.Column("routing", sa.String(), nullable=False, server_default="sticky"))
    op.add_column("fleets", sa.Column("join_identical", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("fleets", sa.Column("drain_timeout_seconds", sa.Double(), nullable=True))
    op.add_column("fleets", sa.Column("retired_at", sa.Double(), nullable=True))
    op.add_column("engines", sa.Column("running_with", sa.JSON(), nullable=True))
    op.add_column("engines", sa.Column("devices", sa.JSON(), nullable=False, server_default="[]"))
    op.add_column("engines", sa.Column("retired_at", sa.Double(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("engines") as table:
        for name in ("retired_at", "devices", "running_with"):
            table.drop_column(name)
    with op.batch_alter_table("fleets") as table:
        for name in (
            "retired_at",
            "drain_timeout_seconds",
            "join_identical",
            "routing",
            "port_to",
            "port_from",
            "devices",
            "environment",
            "base_flags",
        ):
            table.drop_column(name)
