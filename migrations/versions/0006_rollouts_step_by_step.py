"""rollouts step by step

A migration must work with the previous release still running, and with rows in the tables.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "rollout_turns",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("rollout_id", sa.Integer(), nullable=False),
        sa.Column("engine_id", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("before_id", sa.Integer(), nullable=False),
        sa.Column("stopped_on_purpose", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["before_id"], ["profile_versions.id"], name="fk_rollout_turns_before_id_profile_versions"
        ),
        sa.ForeignKeyConstraint(["engine_id"], ["engines.id"], name="fk_rollout_turns_engine_id_engines"),
        sa.ForeignKeyConstraint(["rollout_id"], ["rollouts.id"], name="fk_rollout_turns_rollout_id_rollouts"),
        sa.PrimaryKeyConstraint("id", name="pk_rollout_turns"),
        sa.UniqueConstraint("rollout_id", "engine_id", name="uq_rollout_turns_rollout_id"),
    )
    op.create_index("ix_rollout_turns_rollout_id", "rollout_turns", ["rollout_id"])
    op.create_index("ix_rollout_turns_engine_id", "rollout_turns", ["engine_id"])
    op.create_table(
        "rollout_steps",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("turn_id", sa.Integer(), nullable=False),
        sa.Column("way", sa.String(), nullable=False),
        sa.Column("step", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("said", sa.JSON(), server_default="{}", nullable=False),
        sa.ForeignKeyConstraint(["turn_id"], ["rollout_turns.id"], name="fk_rollout_steps_turn_id_rollout_turns"),
        sa.PrimaryKeyConstraint("id", name="pk_rollout_steps"),
        sa.UniqueConstraint("turn_id", "way", "step", name="uq_rollout_steps_turn_id"),
    )
    op.create_index("ix_rollout_steps_turn_id", "rollout_steps", ["turn_id"])
    op.create_table(
        "rollout_log",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("rollout_id", sa.Integer(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("engine", sa.String(), nullable=False),
        sa.Column("said", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["rollout_id"], ["rollouts.id"], name="fk_rollout_log_rollout_id_rollouts"),
        sa.PrimaryKeyConstraint("id", name="pk_rollout_log"),
    )
    op.create_index("ix_rollout_log_rollout_id", "rollout_log", ["rollout_id"])
    with op.batch_alter_table("rollouts") as batch:
        batch.add_column(sa.Column("wish", sa.String(), server_default="", nullable=False))
        batch.add_column(sa.Column("wish_by", sa.String(), server_default="", nullable=False))
        batch.add_column(sa.Column("drain_timeout_seconds", sa.Double(), nullable=True))
        batch.add_column(sa.Column("said", sa.JSON(), server_default="{}", nullable=False))


def downgrade() -> None:
    with op.batch_alter_table("rollouts") as batch:
        for name in ("said", "drain_timeout_seconds", "wish_by", "wish"):
            batch.drop_column(name)
    for table in ("rollout_log", "rollout_steps", "rollout_turns"):
        op.drop_table(table)
