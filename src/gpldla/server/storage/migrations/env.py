"""Run by alembic: migrates the database of a given connection."""

from alembic import context

from gpldla.server.storage.tables import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    render_as_batch=True,  # SQLite cannot alter a column in place
    transaction_per_migration=False,
)
context.run_migrations()
