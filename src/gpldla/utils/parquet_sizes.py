"""How large the columns of a Parquet file become in memory, by its own directory."""

from io import BytesIO
from typing import Any

from gpldla.utils.errors import UserError

LARGE = 64 << 20  # bytes of a column of a row group, from which on its compression is looked at
# Texts become three to ten times smaller, pictures hardly any. Repeated values are stored once, by their
# number, before anything is compressed, so they do not count here.
MOST_COMPRESSION = 100


def refuse_bombs(file: Any, name: str) -> None:
    """Raise a sentence if a small Parquet file would take much memory; file: open, or its metadata."""
    import pyarrow.parquet as pq

    metadata = pq.ParquetFile(file).metadata if isinstance(file, BytesIO) else file
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for number in range(row_group.num_columns):
            column = row_group.column(number)
            size, packed = column.total_uncompressed_size, max(1, column.total_compressed_size)
            if size > LARGE and size > MOST_COMPRESSION * packed:
                raise UserError(
                    f"The column {column.path_in_schema!r} of {name} is {size / packed:,.0f} times as large"
                    f" unpacked, {size >> 20} MiB: this is no column of texts or pictures; leave it out."
                )
