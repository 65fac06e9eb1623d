"""What the server remembers: tasks and their examples in a database."""

from gpldla.server.storage.database import open_database
from gpldla.server.storage.records import ExampleRecord, NewExample, TaskRecord
from gpldla.server.storage.store import Store

__all__ = ["ExampleRecord", "NewExample", "Store", "TaskRecord", "open_database"]
