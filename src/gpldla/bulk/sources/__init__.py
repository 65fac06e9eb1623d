"""What bulk scoring reads: folders of pictures, Parquet files and data sets, cut into numbered chunks.

A chunk is an Arrow table with the name and the content of each item, and all columns that are passed on to
the output. The same command cuts the same source in the same way, in any process.
"""

from gpldla.bulk.sources.base import CHUNK_SIZES, CONTENT, ITEM, Accepted, Source, Survey, Unit
from gpldla.bulk.sources.find import find_source
from gpldla.bulk.sources.parquet_rows import ParquetRows
from gpldla.bulk.sources.picture_files import PictureFiles
from gpldla.bulk.sources.stored_images import StoredImages

__all__ = [
    "CHUNK_SIZES",
    "CONTENT",
    "ITEM",
    "Accepted",
    "ParquetRows",
    "PictureFiles",
    "Source",
    "StoredImages",
    "Survey",
    "Unit",
    "find_source",
]
