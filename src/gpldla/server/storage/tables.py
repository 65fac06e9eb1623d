"""The tables; a change here needs a migration in `migrations/versions`."""

from sqlalchemy import (
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
)

METADATA = MetaData()

TASKS = Table(
    "tasks",
    METADATA,
    Column("id", String(32), primary_key=True),
    Column("kind", String(16), nullable=False),
    Column("name", Text, nullable=False),
    Column("network", String(64), nullable=False),
    Column("created", Float(53), nullable=False),
    Column("expires", Float(53), nullable=False, index=True),
    Column("revision", Integer, nullable=False),
    Column("unlabelled", LargeBinary),  # float32 rows without labels that came with an uploaded classifier
)

EXAMPLES = Table(
    "examples",
    METADATA,
    Column("number", Integer, primary_key=True, autoincrement=True),  # the order in which they were added
    Column("id", String(32), nullable=False, unique=True),
    Column("task", String(32), ForeignKey("tasks.id", ondelete="CASCADE"), nullable=False),
    Column("label", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("text", Text),
    Column("features", LargeBinary, nullable=False),  # float32, little-endian
    Column("thumbnail", LargeBinary),
    Column("deleted", Boolean, nullable=False),  # removed, and can be restored
    Index("ix_examples_task", "task", "deleted"),
)
