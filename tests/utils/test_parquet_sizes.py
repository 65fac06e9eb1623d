"""Parquet files that are small and want to become large."""

import numpy as np
import pytest

from gpldla.bulk.sources.parquet_rows import open_parquet
from gpldla.data.tables import open_table
from gpldla.utils.errors import UserError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

BOMB = 100 << 20


def written(file, cells, **options):
    pq.write_table(
        pa.table({"label": ["a"] * len(cells), "text": cells}), file, compression="zstd", **options
    )
    return file


@pytest.mark.parametrize("read", [open_parquet, open_table])
@pytest.mark.parametrize("kind", [bytes, str])
def test_a_cell_that_is_a_bomb_is_refused_before_it_is_read(tmp_path, read, kind):
    cell = bytes(BOMB) if kind is bytes else " " * BOMB
    file = written(tmp_path / "bomb.parquet", [cell], use_dictionary=False)
    del cell
    assert file.stat().st_size < 1 << 20
    before = pa.default_memory_pool().bytes_allocated()
    with pytest.raises(UserError, match=r"'text' of .*bomb\.parquet is .* times as large unpacked, 100 MiB"):
        read(file)
    assert pa.default_memory_pool().bytes_allocated() - before < BOMB // 10


def test_large_columns_of_real_data_are_read(tmp_path):
    rng = np.random.default_rng(0)
    words = np.array(["few", "shot", "learning", "with", "honest", "probabilities"])
    texts = [" ".join(words[rng.integers(0, 6, 200)]) for _ in range(60_000)]
    file = written(tmp_path / "texts.parquet", texts, use_dictionary=False)
    assert pq.ParquetFile(file).metadata.row_group(0).column(1).total_uncompressed_size > 64 << 20
    open_parquet(file).close()
    # One text that is repeated is stored once.
    open_parquet(written(tmp_path / "same.parquet", [texts[0]] * 200_000)).close()
