"""Tasks and their examples."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create both tables."""
    op.create_table(
        "tasks",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("network", sa.String(64), nullable=False),
        sa.Column("created", sa.Float(53), nullable=False),
        sa.Column("expires", sa.Float(53), nullable=False, index=True),
        sa.Column("revision", sa.Integer, nullable=False),
        sa.Column("unlabelled", sa.LargeBinary),
    )
    op.create_table(
        "examples",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("id", sa.String(32), nullable=False, unique=True),
        sa.Column("task", sa.String(32), sa.ForeignKey("tasks.id", ondelete="CASCADE"), nullable=False),
        sa.Column("label", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("text", sa.Text),
        sa.Column("features", sa.LargeBinary, nullable=False),
        sa.Column("thumbnail", sa.LargeBinary),
        sa.Column("deleted", sa.Boolean, nullable=False),
    )
    op.create_index("ix_examples_task", "examples", ["task", "deleted"])


def downgrade() -> None:
    """Drop both tables."""
    op.drop_table("examples")
    op.drop_table("tasks")
