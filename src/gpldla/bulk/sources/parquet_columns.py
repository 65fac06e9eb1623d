"""Which column of Parquet files is scored, and what the others are called in the output."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from gpldla.bulk.sources.base import CONTENT, ITEM, Accepted, Kind
from gpldla.bulk.sources.parquet_rows import ParquetRows, open_parquet
from gpldla.utils.errors import UserError, did_you_mean


def parquet_source(
    files: list[str], base: str, column: str | None, accepted: Accepted, reserved: Sequence[str]
) -> ParquetRows:
    """Return the source of a column, by default of the only one that the classifier accepts."""
    from gpldla.data.tables import passthrough_names

    first, schema = files[0], _schema(files[0])
    for file in files[1:]:
        if not _schema(file).equals(schema):
            raise UserError(f"{first} and {file} have different columns; score them separately.")
    repeated = {name for name in schema.names if schema.names.count(name) > 1}
    if repeated:
        raise UserError(f"{first} has several columns of the name {min(repeated)!r}; rename them.")
    kinds = {each.name: kind for each in schema if (kind := _kind_of_column(each.type, accepted))}
    column = column or _only_candidate(kinds, schema, first)
    if column not in schema.names:
        raise UserError(f"{first} has no column {column!r}{did_you_mean(column, schema.names)}")
    if column not in kinds:
        raise UserError(
            f"The column {column!r} of {first} is of type {schema.field(column).type};"
            f" this classifier scores {_wanted(accepted)}."
        )
    others = [name for name in schema.names if name != column]
    return ParquetRows(
        files, base, column, kinds[column], passthrough_names(others, [*reserved, ITEM, CONTENT])
    )


def _schema(file: str) -> pa.Schema:
    with open_parquet(Path(file)) as opened:
        schema = opened.schema_arrow
    return pa.schema([(each.name, _storage(each.type)) for each in schema])


def _storage(kind: pa.DataType) -> pa.DataType:
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _kind_of_column(kind: pa.DataType, accepted: Accepted) -> Kind | None:
    """Return what a column of this type holds for the classifier, or None."""
    types = pa.types
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        length = kind.list_size if types.is_fixed_size_list(kind) else accepted.feature_dim
        fits = accepted.feature_dim is not None and length == accepted.feature_dim
        return "embeddings" if fits and types.is_floating(kind.value_type) else None
    if accepted.reads == "texts":
        return "texts" if types.is_string(kind) or types.is_large_string(kind) else None
    if types.is_struct(kind):  # as Hugging Face writes pictures
        found = kind.get_all_field_indices("bytes")
        if len(found) != 1:
            return None
        return _kind_of_column(kind.field(found[0]).type, Accepted("pictures", None))
    return "pictures" if types.is_binary(kind) or types.is_large_binary(kind) else None


def _only_candidate(kinds: dict[str, Kind], schema: pa.Schema, file: str) -> str:
    # Any text may be an id or a comment, so texts do not count where there are embeddings.
    candidates = [name for name, kind in kinds.items() if kind != "texts"] or list(kinds)
    if len(candidates) == 1:
        return candidates[0]
    columns = ", ".join(f"{each.name} ({each.type})" for each in schema)
    if candidates:
        raise UserError(
            f"{file} has several columns that could be scored, {', '.join(candidates)};"
            " name one with --column."
        )
    raise UserError(f"{file} has no column that this classifier can score; its columns are {columns}.")


def _wanted(accepted: Accepted) -> str:
    what = "bytes of picture files" if accepted.reads == "pictures" else "texts"
    if accepted.feature_dim is None:
        return what
    return f"{what}, and embeddings as lists of {accepted.feature_dim} floating-point numbers"
