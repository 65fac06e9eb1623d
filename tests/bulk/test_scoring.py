"""Bulk scoring: both engines, their files, what they refuse, and what happens when something is killed."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("pyarrow")

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import torch

from gpldla.backbones.base import _BACKBONES
from gpldla.bulk.sources import ParquetRows, PictureFiles, Unit
from gpldla.classifier.few_shot import FewShotClassifier
from gpldla.classifier.model import FewShotModel
from gpldla.cli import predict as predict_command
from gpldla.utils.files import exclusive_lock
from tests.classifier.test_answers import write_pictures
from tests.classifier.test_file import Letters
from tests.helpers import call

WIDTH = 784  # of the features of "pixels"
OURS = ["item", "answer", "likeliest", "probability", "none_of_these", "probabilities", "error"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Classifiers, and pictures of the same kinds; only to be read."""
    folder = tmp_path_factory.mktemp("made")
    write_pictures(folder / "photos", count=5)
    write_pictures(folder / "new", count=7, seed=1)
    for name, photos in (("birds", "photos"), ("others", "new")):
        arguments = ["--model", "pixels", "--device", "cpu"]
        assert call("fit", folder / photos, "-o", folder / f"{name}.safetensors", *arguments) == 0
    return folder


@pytest.fixture
def birds(made):
    return made / "birds.safetensors"


@pytest.fixture(scope="module")
def embeddings(made):
    """The features of the new pictures, float32 [21, 784]."""
    model = FewShotClassifier.load(made / "birds.safetensors").model
    return model.embed(sorted((made / "new").rglob("*.png"))).numpy()


@pytest.fixture
def score(run, birds):
    """Score in bulk; return the answers and what was said."""

    def score_in_bulk(source, output, *arguments):
        code, out, err = run("predict", birds, source, "-o", output, "--device", "cpu", *arguments)
        assert code == 0, err
        assert out == "" or "ray" in arguments  # which prints there that a worker died
        return ds.dataset(output).to_table(), err

    return score_in_bulk


@pytest.fixture
def rejected(refused, birds, tmp_path):
    """Give something to score that cannot be; return the sentence."""

    def reject(source, *arguments):
        return refused("predict", birds, source, "-o", tmp_path / "out", "--device", "cpu", *arguments)

    return reject


def probabilities(table):
    return np.stack(table["probabilities"].to_numpy())


def lists(rows, kind=None):
    values = [None if row is None else [float(number) for number in row] for row in rows]
    return pa.array(values, kind or pa.list_(pa.float32()))


def write_parquet(file, columns, **options):
    pq.write_table(pa.table(columns), file, **options)
    return file


def file_bytes(folder):
    return [file.read_bytes() for file in sorted(folder.rglob("*.png"))]


class TestPictures:
    def test_gives_what_predict_prints(self, run, score, birds, made, tmp_path):
        table, _ = score(made / "new", tmp_path / "out", "--chunk-size", 4, "--max-error", 0.012)
        _, out, _ = run("predict", birds, made / "new", "--max-error", 0.012, "--json")
        printed = json.loads(out)
        assert table.column_names == OURS
        rows = table.to_pylist()
        assert [row["item"] for row in rows] == [one["item"] for one in printed]
        assert [row["likeliest"] for row in rows] == [one["label"] for one in printed]
        assert [row["answer"] == "unsure" for row in rows] == [one["unsure"] for one in printed]
        assert {row["answer"] for row in rows} == {"cat", "dog", "owl", "unsure"}
        for row, one in zip(rows, printed):
            np.testing.assert_allclose(row["probabilities"], list(one["probabilities"].values()), atol=1e-6)
            assert row["probability"] == max(row["probabilities"])
            assert row["none_of_these"] == pytest.approx(one["none_of_these"], abs=1e-6)

    def test_parts_say_what_their_classes_are(self, score, made, tmp_path):
        _, err = score(made / "new", tmp_path / "out", "--chunk-size", 8)
        parts = sorted((tmp_path / "out").glob("*.parquet"))
        assert [part.name for part in parts] == [f"part-0000{i}.parquet" for i in range(3)]
        assert [pq.read_metadata(part).num_rows for part in parts] == [8, 8, 5]
        facts = json.loads(pq.read_schema(parts[0]).metadata[b"gpldla"])
        assert facts["classes"] == ["cat", "dog", "owl"]
        assert "21 rows in " in err
        assert " rows/s)" in err

    def test_a_picture_and_a_folder_together(self, run, birds, made, tmp_path):
        single = made / "photos" / "owl" / "0.png"
        assert run("predict", birds, single, made / "new", "-o", tmp_path / "out")[0] == 0
        items = ds.dataset(tmp_path / "out").to_table()["item"].to_pylist()
        assert items == [str(single), *map(str, sorted((made / "new").rglob("*.png")))]

    def test_a_name_that_is_not_unicode(self, score, tmp_path):
        folder = write_pictures(tmp_path / "pictures", names=("cat",), count=1)
        (folder / "cat" / "0.png").rename(folder / "cat" / os.fsdecode(b"\xff.png"))
        table, _ = score(folder, tmp_path / "out")
        assert table["item"].to_pylist() == [f"{folder}/cat/\\udcff.png"]

    def test_a_data_set_has_labels(self, score, made, tmp_path):
        table, _ = score(f"folder:{made / 'new'}", tmp_path / "out", "--chunk-size", 10)
        assert table.column_names == [*OURS, "label"]
        assert table["label"].to_pylist() == ["cat"] * 7 + ["dog"] * 7 + ["owl"] * 7
        assert table["item"][8].as_py() == f"folder:{made / 'new'}/dog/1"
        assert table["likeliest"].equals(table["label"])

    def test_a_head_that_does_not_know_novelty(self, run, made, tmp_path):
        torch.manual_seed(0)
        FewShotModel("conv4s", "gpldla").save(tmp_path / "model")
        file = tmp_path / "c.safetensors"
        assert run("fit", made / "photos", "-o", file, "--model", tmp_path / "model")[0] == 0
        assert run("predict", file, made / "new", "-o", tmp_path / "out")[0] == 0
        table = ds.dataset(tmp_path / "out").to_table()
        assert table.column_names == OURS
        assert table["none_of_these"].null_count == 21

    def test_a_bad_picture_ends_the_run(self, rejected, made, tmp_path):
        folder = write_pictures(tmp_path / "pictures")
        bad = folder / "dog" / "1.png"
        bad.write_bytes(b"no picture")
        message = rejected(folder, "--chunk-size", 3)
        assert message == (
            f"gpldla: {bad} cannot be read as an image (it is of no known format); replace it,"
            " or add --skip-bad."
        )

    def test_bad_pictures_are_named_where_asked(self, score, made, tmp_path):
        folder = write_pictures(tmp_path / "pictures")
        (folder / "dog" / "1.png").write_bytes(b"no picture")
        for number in range(3):
            whole = (folder / "owl" / f"{number}.png").read_bytes()
            (folder / "owl" / f"{number}.png").write_bytes(whole[: len(whole) // 2])
        table, _ = score(folder, tmp_path / "out", "--chunk-size", 3, "--skip-bad")
        assert table.column_names == OURS
        bad = [row for row in table.to_pylist() if row["error"]]
        assert [Path(row["item"]).name for row in bad] == ["1.png", "0.png", "1.png", "2.png"]
        for row in bad:
            assert all(row[name] is None for name in OURS[1:-1])
            assert row["error"].startswith(f"{row['item']} cannot be read as an image (")
        good = table.filter(pa.array([row["error"] is None for row in table.to_pylist()]))
        assert good["likeliest"].to_pylist() == ["cat"] * 3 + ["dog"] * 2


class TestParquet:
    def test_embeddings_and_other_columns(self, score, embeddings, made, tmp_path):
        expected, _ = score(made / "new", tmp_path / "pictures")
        others = {"id": np.arange(21), "answer": ["x"] * 21, "content": ["y"] * 21}
        columns = {"vector": lists(embeddings), **others}
        file = write_parquet(tmp_path / "rows.parquet", columns, row_group_size=4)
        table, _ = score(file, tmp_path / "out", "--chunk-size", 5)
        assert table.column_names == [*OURS, "id", "input_answer", "content"]
        assert table["item"].to_pylist() == [f"{file}#{i}" for i in range(21)]
        assert table["id"].to_pylist() == list(range(21))
        assert table["input_answer"].to_pylist() == ["x"] * 21
        assert table["answer"].equals(expected["answer"])
        np.testing.assert_allclose(probabilities(table), probabilities(expected), atol=1e-6)

    @pytest.mark.parametrize(
        "kind",
        [pa.list_(pa.float32(), WIDTH), pa.large_list(pa.float64()), pa.list_(pa.float16())],
        ids=["fixed", "large", "half"],
    )
    def test_lists_of_any_kind(self, score, embeddings, kind, made, tmp_path):
        expected, _ = score(made / "new", tmp_path / "pictures")
        file = write_parquet(tmp_path / "rows.parquet", {"v": lists(embeddings, kind)})
        table, _ = score(file, tmp_path / "out")
        assert abs(probabilities(table) - probabilities(expected)).max() < 2e-3

    @pytest.mark.parametrize("kind", ["binary", "struct"])
    def test_bytes_of_pictures(self, score, made, tmp_path, kind):
        expected, _ = score(made / "new", tmp_path / "pictures")
        contents = file_bytes(made / "new")
        column = contents if kind == "binary" else [{"bytes": one, "path": None} for one in contents]
        folder = tmp_path / "rows"
        folder.mkdir()
        for number, rows in enumerate((slice(0, 9), slice(9, 21))):
            write_parquet(folder / f"{number}.parquet", {"image": column[rows], "id": list(range(21))[rows]})
        table, _ = score(folder, tmp_path / "out", "--chunk-size", 5)
        assert table["id"].to_pylist() == list(range(21))
        assert table["item"].to_pylist()[8:10] == [f"{folder}/0.parquet#8", f"{folder}/1.parquet#0"]
        np.testing.assert_allclose(probabilities(table), probabilities(expected), atol=1e-6)

    def test_pictures_are_turned_as_their_files_say(self, score, made, tmp_path):
        picture = Image.open(made / "new" / "cat" / "0.png").resize((64, 32))
        exif = Image.Exif()
        exif[0x0112] = 6
        stream = BytesIO()
        picture.save(stream, "JPEG", exif=exif)
        (tmp_path / "pictures").mkdir()
        (tmp_path / "pictures" / "0.jpg").write_bytes(stream.getvalue())
        expected, _ = score(tmp_path / "pictures", tmp_path / "a")
        file = write_parquet(tmp_path / "rows.parquet", {"image": [stream.getvalue()]})
        assert score(file, tmp_path / "b")[0]["probabilities"].equals(expected["probabilities"])

    def test_texts(self, run, tmp_path, monkeypatch):
        monkeypatch.setitem(_BACKBONES, "letters", Letters)
        classifier = FewShotModel("letters", "gpldla-auto").adapt(
            ["hello there", "oh hello", "sixty six", "six"], ["greeting", "greeting", "number", "number"]
        )
        classifier.save(tmp_path / "c.safetensors")
        file = write_parquet(tmp_path / "rows.parquet", {"id": [1, 2], "text": ["hello", "sixty"]})
        assert run("predict", tmp_path / "c.safetensors", file, "-o", tmp_path / "out")[0] == 0
        table = ds.dataset(tmp_path / "out").to_table()
        assert table["likeliest"].to_pylist() == ["greeting", "number"]

    def test_bad_rows_are_named_where_asked(self, score, embeddings, tmp_path):
        rows = [embeddings[0], None, embeddings[1][:-1], np.full(WIDTH, np.nan), embeddings[2]]
        file = write_parquet(tmp_path / "rows.parquet", {"vector": lists(rows)})
        table, _ = score(file, tmp_path / "out", "--skip-bad")
        assert table["error"].to_pylist() == [
            None,
            f"{file}#1 holds no embedding",
            f"{file}#2 holds 783 numbers, not the classifier's 784",
            f"{file}#3 holds numbers that are missing, infinite or NaN",
            None,
        ]
        assert table["answer"].is_null().to_pylist() == [False, True, True, True, False]
        assert table["none_of_these"][4].as_py() is not None

    def test_nothing_but_bad_rows(self, score, tmp_path):
        file = write_parquet(tmp_path / "rows.parquet", {"vector": lists([[1.0], None])})
        table, _ = score(file, tmp_path / "out", "--skip-bad")
        assert table["answer"].null_count == 2

    def test_a_file_with_extension_types(self, score, embeddings, tmp_path):
        tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(embeddings))
        file = write_parquet(tmp_path / "rows.parquet", {"vector": tensors})
        table, _ = score(file, tmp_path / "out")
        assert (table["answer"].null_count, table["error"].null_count) == (0, 21)


def test_ray_has_a_folder_by_default(monkeypatch, birds, made):
    given = []
    monkeypatch.setattr(predict_command, "_predict_in_bulk", lambda *args, **options: given.append(args))
    assert call("predict", birds, made / "new", "--engine", "ray") == 0
    assert given[0][2].name == f"{birds.stem}-scores"


class TestRefused:
    def test_no_folder_for_chunks(self, refused, birds, made):
        assert "--output FOLDER" in refused("predict", birds, made / "new", "--chunk-size", 3)

    def test_no_folder_for_parquet(self, refused, birds, tmp_path):
        file = write_parquet(tmp_path / "rows.parquet", {"a": [1]})
        assert refused("predict", birds, file).endswith("--output FOLDER.")

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["--engine", "spark"], "There is no engine 'spark'; use local or ray."),
            (["--workers", 2], "--workers is for --engine ray."),
            (["--csv"], "--output and --engine ray write files; leave out --json"),
            (["--column", "a"], "--column names a column of Parquet files"),
        ],
        ids=lambda value: str(value[0]) if isinstance(value, list) else "",
    )
    def test_options_that_do_not_fit(self, rejected, made, arguments, words):
        assert words in rejected(made / "new", *arguments)

    def test_empty_folder(self, rejected, tmp_path):
        (tmp_path / "empty").mkdir()
        assert "holds no pictures and no Parquet files" in rejected(tmp_path / "empty")

    def test_nothing_of_that_name(self, rejected):
        assert "There is no file or folder nothing, nor a data set" in rejected("nothing")

    def test_parquet_without_rows(self, rejected, tmp_path):
        file = write_parquet(tmp_path / "rows.parquet", {"vector": lists([])})
        assert rejected(file) == f"gpldla: {file} holds no rows."

    def test_parquet_that_is_none(self, rejected, tmp_path):
        (tmp_path / "rows.parquet").write_bytes(b"PAR1 no")
        assert "rows.parquet cannot be read as a Parquet file (" in rejected(tmp_path / "rows.parquet")

    def test_damaged_parquet(self, rejected, embeddings, tmp_path):
        file = write_parquet(tmp_path / "rows.parquet", {"vector": lists(embeddings)})
        content = bytearray(file.read_bytes())
        content[4:2000] = bytes(1996)
        file.write_bytes(content)
        assert "rows.parquet cannot be read as a Parquet file (" in rejected(file)

    def test_missing_column(self, rejected, embeddings, tmp_path):
        file = write_parquet(tmp_path / "rows.parquet", {"vector": lists(embeddings)})
        assert "has no column 'vektor'; did you mean 'vector'?" in rejected(file, "--column", "vektor")

    def test_no_column_that_fits(self, rejected, tmp_path):
        columns = {"id": [1], "vector": pa.array([[1.0, 2.0]], pa.list_(pa.float32(), 2))}
        file = write_parquet(tmp_path / "rows.parquet", columns)
        assert "its columns are id (int64), vector (fixed_size_list<" in rejected(file)
        message = rejected(file, "--column", "vector")
        assert "[2]" in message
        assert message.endswith("and embeddings as lists of 784 floating-point numbers.")

    def test_several_columns_that_fit(self, rejected, score, embeddings, tmp_path):
        file = write_parquet(tmp_path / "rows.parquet", {"a": lists(embeddings), "b": lists(embeddings)})
        assert "could be scored, a, b; name one with --column." in rejected(file)
        table, _ = score(file, tmp_path / "out", "--column", "b")
        assert table.column_names == [*OURS, "a"]

    def test_files_of_different_columns(self, rejected, embeddings, tmp_path):
        folder = tmp_path / "rows"
        folder.mkdir()
        write_parquet(folder / "a.parquet", {"vector": lists(embeddings)})
        write_parquet(folder / "b.parquet", {"vector": lists(embeddings), "id": np.arange(21)})
        assert "a.parquet and " in rejected(folder)
        assert "b.parquet have different columns" in rejected(folder)

    @pytest.mark.parametrize(
        ("row", "words"),
        [
            (np.zeros(3), "#1 holds 3 numbers, not the classifier's 784; replace it"),
            (np.full(WIDTH, np.nan), "#1 holds numbers that are missing, infinite or NaN"),
            (np.full(WIDTH, 1e39), "#1 holds numbers that are missing, infinite or NaN"),
            (None, "#1 holds no embedding"),
        ],
        ids=["narrow", "nan", "huge", "null"],
    )
    def test_a_bad_row(self, rejected, embeddings, tmp_path, row, words):
        column = lists([embeddings[0], row], pa.list_(pa.float64()))
        assert words in rejected(write_parquet(tmp_path / "rows.parquet", {"vector": column}))

    def test_both_kinds(self, rejected, made, tmp_path):
        folder = write_pictures(tmp_path / "both", names=("cat",))
        file = write_parquet(folder / "rows.parquet", {"a": [1]})
        assert "holds both pictures and Parquet files" in rejected(folder)
        assert "not Parquet and pictures at once" in rejected(made / "new", file)

    def test_output_among_the_items(self, refused, birds, made):
        message = refused("predict", birds, made / "new", "-o", made / "new" / "out")
        assert "which is to be scored; choose another folder." in message

    def test_output_with_other_files(self, refused, birds, made, tmp_path):
        (tmp_path / "thesis.txt").touch()
        message = refused("predict", birds, made / "new", "-o", tmp_path)
        assert f"{tmp_path} holds other files and no _manifest.json; choose another folder." in message
        assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


class TestGoingOn:
    def test_writes_what_is_missing_and_nothing_else(self, score, made, tmp_path):
        expected, _ = score(made / "new", tmp_path / "out", "--chunk-size", 4)
        parts = sorted((tmp_path / "out").glob("*.parquet"))
        parts[1].unlink()
        parts[4].unlink()
        before = {part: part.stat().st_mtime_ns for part in parts if part.exists()}
        leftover = tmp_path / "out" / ".part-00001.parquet-abc"
        leftover.touch()
        table, err = score(made / "new", tmp_path / "out", "--chunk-size", 4)
        assert "8 rows in " in err
        assert "; 13 were there already." in err
        assert table.equals(expected)
        assert before == {part: part.stat().st_mtime_ns for part in before}
        assert not leftover.exists()
        _, err = score(made / "new", tmp_path / "out", "--chunk-size", 4)
        assert err == f"All 21 rows are in {tmp_path / 'out'} already.\n"

    def test_within_a_row_group(self, score, embeddings, tmp_path):
        file = write_parquet(tmp_path / "rows.parquet", {"vector": lists(embeddings), "id": np.arange(21)})
        expected, _ = score(file, tmp_path / "out", "--chunk-size", 4)
        (tmp_path / "out" / "part-00003.parquet").unlink()
        table, err = score(file, tmp_path / "out", "--chunk-size", 4)
        assert "4 rows in " in err
        assert table.equals(expected)

    def test_after_a_bad_picture_is_mended(self, refused, score, birds, tmp_path):
        folder = write_pictures(tmp_path / "pictures")
        whole = (folder / "owl" / "2.png").read_bytes()
        (folder / "owl" / "2.png").write_bytes(b"")
        arguments = ["-o", tmp_path / "out", "--chunk-size", 4]
        assert "2.png cannot be read" in refused("predict", birds, folder, *arguments)
        (folder / "owl" / "2.png").write_bytes(whole)
        table, err = score(folder, tmp_path / "out", "--chunk-size", 4)
        assert "8 were there already" in err
        assert table.num_rows == 9

    def test_after_a_bad_picture_is_to_be_skipped(self, refused, score, birds, tmp_path):
        folder = write_pictures(tmp_path / "pictures")
        (folder / "owl" / "2.png").write_bytes(b"")
        arguments = ["-o", tmp_path / "out", "--chunk-size", 4]
        message = refused("predict", birds, folder, *arguments)
        assert message.rstrip().endswith("; replace it, or add --skip-bad.")
        table, err = score(folder, tmp_path / "out", "--chunk-size", 4, "--skip-bad")
        assert "8 were there already" in err
        assert (table.num_rows, table["error"].null_count) == (9, 8)

    @pytest.mark.parametrize("share", [0.01, 0.5, 0.995], ids=["begin", "middle", "end"])
    def test_a_damaged_part_is_scored_again(self, score, made, tmp_path, share):
        expected, _ = score(made / "new", tmp_path / "out", "--chunk-size", 8)
        part = tmp_path / "out" / "part-00001.parquet"
        content = bytearray(part.read_bytes())
        content[int(share * len(content))] ^= 1
        part.write_bytes(content)
        table, err = score(made / "new", tmp_path / "out", "--chunk-size", 8)
        assert f"{part} is damaged: its checksum does not match; it is scored again." in err
        assert "; 13 were there already." in err
        assert table.equals(expected)

    def test_parts_from_before_there_were_checksums_count(self, score, made, tmp_path):
        score(made / "new", tmp_path / "out", "--chunk-size", 8)
        shutil.rmtree(tmp_path / "out" / "_checksums")
        _, err = score(made / "new", tmp_path / "out", "--chunk-size", 8)
        assert err == f"All 21 rows are in {tmp_path / 'out'} already.\n"

    @pytest.mark.skipif(shutil.which("sha256sum") is None, reason="needs sha256sum")
    def test_checksums_are_those_of_sha256sum(self, score, made, tmp_path):
        score(made / "new", tmp_path / "out", "--chunk-size", 8)
        command = "cat _checksums/*.sha256 | sha256sum --check --strict"
        said = subprocess.run(command, shell=True, cwd=tmp_path / "out", capture_output=True, text=True)
        assert said.stdout.splitlines() == [f"part-0000{index}.parquet: OK" for index in range(3)]
        assert said.returncode == 0

    def test_not_while_another_run_writes_there(self, score, refused, birds, made, tmp_path):
        with exclusive_lock(tmp_path / "out", "bulk scoring"):
            message = refused("predict", birds, made / "new", "-o", tmp_path / "out")
            assert f"Another bulk scoring is running in {tmp_path / 'out'}; choose another" in message
            assert list((tmp_path / "out").iterdir()) == []
        assert score(made / "new", tmp_path / "out")[0].num_rows == 21

    def test_not_with_something_else(self, refused, score, birds, made, tmp_path):
        folder = write_pictures(tmp_path / "pictures")
        score(folder, tmp_path / "out")
        end = ["-o", tmp_path / "out"]
        message = refused("predict", made / "others.safetensors", folder, *end)
        assert f"{tmp_path / 'out'} holds the answers of a run with another classifier;" in message
        message = refused("predict", birds, folder, *end, "--max-error", 0.5)
        assert "with other settings (max_error 0.25, now 0.5); choose another folder" in message
        assert "other items" in refused("predict", birds, made / "new", *end)
        (folder / "cat" / "0.png").unlink()
        assert "of a run with other items;" in refused("predict", birds, folder, *end)

    def test_a_manifest_that_is_none(self, refused, birds, made, tmp_path):
        (tmp_path / "_manifest.json").write_text("[]")
        assert "is not a manifest of format 1" in refused("predict", birds, made / "new", "-o", tmp_path)


class TestSources:
    def test_reading_parquet_does_not_load_torch(self, tmp_path):
        file = write_parquet(tmp_path / "rows.parquet", {"n": np.arange(20)})
        code = (
            "import sys; from gpldla.bulk.job import Job; from gpldla.bulk.sources import ParquetRows\n"
            f"source = ParquetRows([{str(file)!r}], '', 'n', 'embeddings', {{}})\n"
            "assert [len(t) for unit in source.survey(15).units for _, t in source.read(unit)] == [15, 5]\n"
            "assert 'torch' not in sys.modules"
        )
        subprocess.run([sys.executable, "-c", code], check=True)

    def test_units_survive_json(self):
        unit = Unit(3, [4, 2], ["a.parquet", 0, 2, 12])
        assert unit.chunks == [(3, 4), (4, 2)]
        assert Unit(**json.loads(json.dumps(vars(unit)))) == unit

    @pytest.mark.parametrize("row_group", [1, 3, 7, 50])
    @pytest.mark.parametrize("chunk_size", [1, 4, 7, 50])
    def test_every_row_is_in_one_chunk(self, tmp_path, row_group, chunk_size):
        file = write_parquet(
            tmp_path / "rows.parquet", {"v": lists(np.eye(20)), "n": np.arange(20)}, row_group_size=row_group
        )
        source = ParquetRows([str(file)], str(tmp_path), "v", "embeddings", {"n": "n"})
        survey = source.survey(chunk_size)
        read = [chunk for unit in survey.units for chunk in source.read(unit)]
        assert [(number, table.num_rows) for number, table in read] == survey.chunks
        assert [number for number, _ in survey.chunks] == list(range(len(survey.chunks)))
        assert max(rows for _, rows in survey.chunks) <= chunk_size
        assert [n for _, table in read for n in table["n"].to_pylist()] == list(range(20))
        assert [item for _, table in read for item in table["item"].to_pylist()] == [
            f"{file}#{n}" for n in range(20)
        ]

    @pytest.mark.parametrize(
        ("row_group", "sizes"),
        [(1, [5, 5, 5, 5]), (2, [4] * 5), (3, [3] * 5 + [5]), (7, [5, 2, 5, 2, 5, 1]), (50, [5] * 4)],
    )
    def test_row_groups_are_joined_or_cut(self, tmp_path, row_group, sizes):
        file = write_parquet(tmp_path / "rows.parquet", {"n": np.arange(20)}, row_group_size=row_group)
        survey = ParquetRows([str(file)], str(tmp_path), "n", "embeddings", {}).survey(5)
        assert [rows for _, rows in survey.chunks] == sizes

    def test_a_large_row_group_does_not_go_through_memory_as_a_whole(self, tmp_path):
        rows = np.random.default_rng(0).random((20_000, 256), np.float32)
        column = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), 256)
        file = write_parquet(tmp_path / "rows.parquet", {"v": column}, compression="none")
        del rows, column
        source = ParquetRows([str(file)], str(tmp_path), "v", "embeddings", {})
        [unit] = source.survey(500).units
        before = pa.total_allocated_bytes()
        most = max(pa.total_allocated_bytes() - before for _ in source.read(unit))
        assert most < file.stat().st_size / 2

    def test_the_fingerprint_is_of_names(self, tmp_path):
        folder = write_pictures(tmp_path / "pictures", names=("cat",))
        source = PictureFiles([str(folder)], str(tmp_path))
        before = source.survey(2).fingerprint
        (folder / "cat" / "0.png").touch()
        assert source.survey(1).fingerprint == before
        (folder / "cat" / "0.png").write_bytes(b"mended")
        assert source.survey(2).fingerprint == before
        (folder / "cat" / "0.png").rename(folder / "cat" / "00.png")
        assert source.survey(2).fingerprint != before


def wait_for(found, seconds=120):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = found()
        if value:
            return value
        time.sleep(0.001)
    raise AssertionError("that did not happen in time")


def large_pictures(folder, count):
    """Pictures that take some ten milliseconds to decode, so that there is a midway."""
    folder.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (700, 700), dtype=np.uint8)
    for number in range(count):
        Image.fromarray(np.roll(pixels, 9 * number)).save(folder / f"{number:03}.png", compress_level=1)
    return folder


@pytest.fixture(scope="module")
def ray_of_two():
    """A Ray with two CPUs on this machine, and nothing that leaves it."""
    ray = pytest.importorskip("ray")
    pytest.importorskip("ray.data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.delenv("RAY_ADDRESS", raising=False)
        ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=50)
        yield ray
        ray.shutdown()


class TestRay:
    def test_the_same_rows_and_one_worker_killed_midway(self, ray_of_two, score, tmp_path):
        folder = large_pictures(tmp_path / "pictures", 120)
        (folder / "077.png").write_bytes(b"no picture")
        options = ["--chunk-size", 4, "--skip-bad"]
        expected, _ = score(folder, tmp_path / "local", *options)
        output = tmp_path / "ray"
        killed = []

        def kill_one_at_work():
            try:
                file = next(output.glob(".tries-*"))
                pid = int(file.read_text().split()[0])
            except (StopIteration, OSError, IndexError):
                return False
            os.kill(pid, signal.SIGSTOP)
            if file.exists():  # else it had just finished
                killed.append(len(list(output.glob("*.parquet"))))
                os.kill(pid, signal.SIGKILL)
            else:
                os.kill(pid, signal.SIGCONT)
            return bool(killed)

        def kill_midway():
            wait_for(lambda: len(list(output.glob("*.parquet"))) >= 3)
            wait_for(kill_one_at_work)

        killer = threading.Thread(target=kill_midway)
        killer.start()
        table, err = score(folder, output, "--engine", "ray", "--workers", 2, *options)
        killer.join()
        assert 3 <= killed[0] < 30
        assert "120 rows in " in err
        assert "A worker has died; Ray has started another" in err
        assert table.equals(expected, check_metadata=True)
        assert len(set(table["item"].to_pylist())) == 120
        assert sorted(path.name for path in output.iterdir()) == sorted(
            path.name for path in (tmp_path / "local").iterdir()
        )

    @pytest.mark.long
    def test_parquet_and_data_sets(self, ray_of_two, score, refused, birds, embeddings, made, tmp_path):
        one_worker = ["--engine", "ray", "--workers", 1]
        columns = {"id": np.arange(21), "vector": lists(embeddings)}
        file = write_parquet(tmp_path / "rows.parquet", columns, row_group_size=10)
        for name, source in (("rows", file), ("set", f"folder:{made / 'new'}")):
            expected, _ = score(source, tmp_path / f"{name}-local", "--chunk-size", 4)
            table, _ = score(source, tmp_path / f"{name}-ray", "--chunk-size", 4, *one_worker)
            assert table.equals(expected, check_metadata=True)
        table, _ = score(file, tmp_path / "few-cpus", "--chunk-size", 9, "--engine", "ray", "--workers", 5)
        assert table.num_rows == 21
        bad = write_parquet(tmp_path / "bad.parquet", {"vector": lists([embeddings[0], [1.0]])})
        message = refused("predict", birds, bad, "-o", tmp_path / "bad", *one_worker)
        assert "bad.parquet#1 holds 1 numbers, not the classifier's 784" in message

    def test_a_chunk_that_kills_its_workers(self, tmp_path):
        from gpldla.bulk.job import Job, Settings
        from gpldla.bulk.ray_engine import TRIES, _count_tries
        from gpldla.utils.errors import UserError

        job = Job(tmp_path, PictureFiles([], ""), tmp_path, Settings(), 5)
        table = pa.table({"item": ["a", "b"]})
        (tmp_path / ".tries-7").write_text("1\n" * (TRIES - 1))
        with _count_tries(job, 7, table) as count:
            assert count == TRIES
            assert (tmp_path / ".tries-7").exists()
        (tmp_path / ".tries-7").write_text("1\n" * TRIES)
        with (
            pytest.raises(UserError, match="between a and b has ended 3 workers"),
            _count_tries(job, 7, table),
        ):
            pass
        assert not list(tmp_path.iterdir())

    def test_a_worker_imports_the_plugins_of_the_command(self, tmp_path, monkeypatch):
        from gpldla.bulk.job import Job, Settings, imported_plugins

        (tmp_path / "plugin_of_workers.py").touch()
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setenv("GPLDLA_IMPORT", f"plugin_of_workers{os.pathsep}json")
        assert imported_plugins() == ("plugin_of_workers", "json")
        Job(tmp_path, PictureFiles([], ""), tmp_path, Settings(), 5, imported_plugins()).import_plugins()
        assert "plugin_of_workers" in sys.modules

    @pytest.mark.parametrize("device", ["tpu", "cuda:1"])
    def test_ray_chooses_the_gpus(self, refused, birds, made, tmp_path, device):
        pytest.importorskip("ray.data")
        arguments = ["-o", tmp_path / "out", "--engine", "ray", "--device", device]
        message = refused("predict", birds, made / "new", *arguments)
        assert message == f"gpldla: --engine ray takes no device {device!r}; use auto, cpu or cuda."

    def test_nobody_there(self, refused, birds, made, tmp_path, monkeypatch):
        pytest.importorskip("ray.data")
        monkeypatch.setattr("ray.is_initialized", lambda: False)
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
        message = refused("predict", birds, made / "new", "-o", tmp_path / "out", "--engine", "ray")
        assert f"Ray cannot be reached at RAY_ADDRESS=127.0.0.1:{port} (" in message

    @pytest.mark.parametrize(
        ("has", "device", "workers"),
        [
            ({"CPU": 8.0}, "auto", (8, False)),
            ({"CPU": 8.0, "GPU": 2.0}, "auto", (2, True)),
            ({"CPU": 8.0, "GPU": 2.0}, "cpu", (8, False)),
        ],
    )
    def test_a_worker_takes_a_gpu_where_ray_has_them(self, monkeypatch, has, device, workers):
        ray = pytest.importorskip("ray")
        from gpldla.bulk.ray_engine import RayEngine

        monkeypatch.setattr(ray, "cluster_resources", lambda: has)
        assert RayEngine(None, device)._resources() == workers
        assert RayEngine(3, device)._resources() == (3, workers[1])

    def test_no_pyarrow(self, rejected, made, monkeypatch):
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        assert rejected(made / "new") == (
            "gpldla: A folder of answers needs PyArrow: pip install 'gpldla[tables]'."
        )

    def test_not_installed(self, refused, birds, made, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "ray", None)
        message = refused("predict", birds, made / "new", "-o", tmp_path / "out", "--engine", "ray")
        assert message.endswith("pip install 'gpldla[scale]'.")
        assert not (tmp_path / "out").exists()


def start(command):
    """Run the command in a process of its own."""
    arguments = [sys.executable, "-m", "gpldla", *map(str, command)]
    return subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("engine", ["local", pytest.param("ray", marks=pytest.mark.long)])
def test_goes_on_after_the_whole_run_was_killed(score, birds, tmp_path, engine):
    if engine == "ray":
        pytest.importorskip("ray.data")
    folder = large_pictures(tmp_path / "pictures", 80)
    output = tmp_path / "out"
    with start(["predict", birds, folder, "-o", output, "--chunk-size", 2, "--engine", engine]) as process:
        wait_for(lambda: len(list(output.glob("*.parquet"))) >= 2)
        process.kill()
    time.sleep(0 if engine == "local" else 2)  # Ray's processes notice a little later, and still write
    before = {part: part.stat().st_mtime_ns for part in output.glob("*.parquet")}
    assert 2 <= len(before) < 40
    table, err = score(folder, output, "--chunk-size", 2)
    assert f"; {2 * len(before)} were there already." in err
    assert before == {part: part.stat().st_mtime_ns for part in before}
    expected, _ = score(folder, tmp_path / "whole", "--chunk-size", 2)
    assert table.equals(expected)
    assert not list(output.glob(".part-*"))


def test_a_stop_ends_between_chunks(score, birds, tmp_path):
    folder = large_pictures(tmp_path / "pictures", 60)
    output = tmp_path / "out"
    with start(["predict", birds, folder, "-o", output, "--chunk-size", 2]) as process:
        wait_for(lambda: list(output.glob("*.parquet")))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    assert process.returncode == 130
    assert "rows to go; the same command resumes the run." in err
    table, _ = score(folder, output, "--chunk-size", 2)
    assert table.num_rows == 60
