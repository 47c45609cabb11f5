"""requests at the door

A migration must work with the previous release still running, and with rows in the tables.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "requests",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("path", sa.String(), nullable=False),
        sa.Column("model", sa.String(), nullable=True),
        sa.Column("fleet", sa.String(), nullable=True),
        sa.Column("engine", sa.String(), nullable=True),
        sa.Column("profile", sa.String(), nullable=True),
        sa.Column("version", sa.Integer(), nullable=True),
        sa.Column("session", sa.String(), nullable=True),
        sa.Column("outcome", sa.String(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("streams", sa.Boolean(), nullable=False),
        sa.Column("is_identical", sa.Boolean(), nullable=False),
        sa.Column("is_joined", sa.Boolean(), nullable=False),
        sa.Column("input_tokens", sa.Integer(), nullable=True),
        sa.Column("output_tokens", sa.Integer(), nullable=True),
        sa.Column("cached_tokens", sa.Integer(), nullable=True),
        sa.Column("vram_tokens", sa.Integer(), nullable=True),
        sa.Column("host_tokens", sa.Integer(), nullable=True),
        sa.Column("queue_seconds", sa.Double(), nullable=True),
        sa.Column("first_byte_seconds", sa.Double(), nullable=True),
        sa.Column("total_seconds", sa.Double(), nullable=False),
        sa.Column("sent_bytes", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_requests")),
    )
    op.create_index(op.f("ix_requests_at"), "requests", ["at"])
    op.create_index("ix_requests_session_id", "requests", ["session", "id"])


def downgrade() -> None:
    op.drop_index("ix_requests_session_id", table_name="requests")
    op.drop_index(op.f("ix_requests_at"), table_name="requests")
    op.drop_table("requests")
