"""what a version allows, what it was checked against, and where it ran

A migration must work with the previous release still running, and with rows in the tables.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # The release before writes rows without it.
    op.add_column("profile_versions", sa.Column("allow", sa.JSON(), nullable=False, server_default="[]"))
    op.create_table(
        "validations",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("version_id", sa.Integer(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("depth", sa.Integer(), nullable=False),
        sa.Column("against", sa.JSON(), nullable=False),
        sa.Column("findings", sa.JSON(), nullable=False),
        sa.Column("numbers", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["version_id"], ["profile_versions.id"], name=op.f("fk_validations_version_id_profile_versions")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_validations")),
    )
    op.create_index(op.f("ix_validations_version_id"), "validations", ["version_id"])
    op.create_table(
        "runs",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("engine_id", sa.Integer(), nullable=False),
        sa.Column("version_id", sa.Integer(), nullable=False),
        sa.Column("marker", sa.String(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["engine_id"], ["engines.id"], name=op.f("fk_runs_engine_id_engines")),
        sa.ForeignKeyConstraint(
            ["version_id"], ["profile_versions.id"], name=op.f("fk_runs_version_id_profile_versions")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
    )
    op.create_index(op.f("ix_runs_engine_id"), "runs", ["engine_id"])
    op.create_index(op.f("ix_runs_version_id"), "runs", ["version_id"])


def downgrade() -> None:
    op.drop_index(op.f("ix_runs_version_id"), table_name="runs")
    op.drop_index(op.f("ix_runs_engine_id"), table_name="runs")
    op.drop_table("runs")
    op.drop_index(op.f("ix_validations_version_id"), table_name="validations")
    op.drop_table("validations")
    with op.batch_alter_table("profile_versions") as table:
        table.drop_column("allow")
