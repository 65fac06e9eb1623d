"""Tables through the command line: what is read, what is left out, and what reaches the output."""

import csv
import io
import json
import sys
from types import SimpleNamespace

import pytest

from gpldla.backbones.base import _BACKBONES
from tests.classifier.test_answers import write_pictures
from tests.classifier.test_file import Letters
from tests.helpers import call

TICKETS = [
    {"ticket_id": "T-1", "body": "well hello", "answer": "none yet", "priority": 3},
    {"ticket_id": "T-2", "body": "six; sixty\nfix", "answer": "", "priority": 1},
]


@pytest.fixture(autouse=True)
def letters(monkeypatch):
    monkeypatch.setitem(_BACKBONES, "letters", Letters)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Classifiers of texts and of pictures; only to be read."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(_BACKBONES, "letters", Letters)
        (folder / "texts.csv").write_text(
            "text,label\nhello there,greeting\noh hello,greeting\nsix fix,numbers\nsixty six,numbers\n"
        )
        assert call("fit", folder / "texts.csv", "-o", folder / "topics", "--model", "letters") == 0
        photos = write_pictures(folder / "photos", count=4)
        assert call("fit", photos, "-o", folder / "birds", "--model", "pixels", "--device", "cpu") == 0
    return folder


@pytest.fixture
def tickets(tmp_path):
    file = tmp_path / "tickets.csv"
    with file.open("w", newline="", encoding="utf-16") as opened:
        writer = csv.DictWriter(opened, list(TICKETS[0]), delimiter=";")
        writer.writeheader()
        writer.writerows(TICKETS)
    return file


@pytest.fixture
def standard_input(monkeypatch):
    def give(content):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content)))

    return give


def rows_of(out):
    return list(csv.DictReader(io.StringIO(out)))


class TestColumnsPassThrough:
    def test_to_csv_and_the_table(self, run, made, tickets):
        arguments = ["predict", made / "topics", tickets, "--text", "body", "--max-error", "1"]
        code, out, err = run(*arguments, "--csv")
        assert code == 0
        assert "is separated by semicolons" in err
        assert list(rows_of(out)[0]) == [
            *("item", "ticket_id", "input_answer", "priority", "answer", "probability", "none_of_these"),
            *("greeting", "numbers"),
        ]
        kept = ("item", "ticket_id", "input_answer", "priority", "answer")
        assert [[row[name] for name in kept] for row in rows_of(out)] == [
            ["well hello", "T-1", "none yet", "3", "greeting"],
            ["six; sixty\nfix", "T-2", "", "1", "numbers"],
        ]
        _, out, _ = run(*arguments)
        assert "T-2" in next(line for line in out.splitlines() if "six; sixty fix" in line)

    def test_to_json_with_their_types(self, run, made, tmp_path):
        (tmp_path / "tickets.jsonl").write_text("".join(json.dumps(one) + "\n" for one in TICKETS))
        code, out, _ = run("predict", made / "topics", tmp_path / "tickets.jsonl", "--text", "body", "--json")
        assert code == 0
        assert [one["columns"] for one in json.loads(out)] == [
            {name: value for name, value in one.items() if name != "body"} for one in TICKETS
        ]

    def test_items_of_other_sources_have_none(self, run, made, tickets):
        _, out, _ = run("predict", made / "topics", "six", tickets, "--text", "body", "--csv")
        assert [row["ticket_id"] for row in rows_of(out)] == ["", "T-1", "T-2"]

    def test_to_what_is_suggested(self, run, made, tickets):
        code, out, _ = run("suggest", made / "topics", tickets, "--text", "body", "--csv")
        assert code == 0
        assert {(row["ticket_id"], row["item"], row["label"]) for row in rows_of(out)} == {
            (one["ticket_id"], one["body"], "") for one in TICKETS
        }


class TestAnswerFiles:
    @pytest.fixture
    def write(self, run, made, tickets, tmp_path):
        def write_answers(name):
            file = tmp_path / name
            code, out, err = run(
                "predict", made / "topics", tickets, "--text", "body", "-o", file, "--max-error", "1"
            )
            assert (code, out) == (0, "")
            assert f"Wrote {file}: 2 answers, of which 0 are unsure." in err
            return file

        return write_answers

    def test_csv_is_what_is_printed(self, run, made, write, tickets):
        arguments = ["predict", made / "topics", tickets, "--text", "body", "--max-error", "1", "--csv"]
        printed = run(*arguments)[1]
        with write("answers.csv").open(newline="") as file:
            assert file.read() == printed
        assert write("answers.tsv").read_text().startswith("item\tticket_id\tinput_answer\t")

    def test_json(self, write):
        listed = json.loads(write("answers.json").read_text())
        assert listed == [json.loads(line) for line in write("answers.jsonl").read_text().splitlines()]
        assert [one["columns"]["ticket_id"] for one in listed] == ["T-1", "T-2"]

    def test_parquet_without_ray(self, write, monkeypatch):
        pq = pytest.importorskip("pyarrow.parquet")
        monkeypatch.setitem(sys.modules, "ray", None)
        table = pq.read_table(write("answers.parquet"))
        assert table.column("ticket_id").to_pylist() == ["T-1", "T-2"]
        assert table.column("answer").to_pylist() == ["greeting", "numbers"]
        assert table.schema.field("greeting").type == "double"

    def test_an_input_is_not_overwritten(self, refused, made, tickets):
        before = tickets.read_bytes()
        assert "is an input" in refused("predict", made / "topics", tickets, "--text", "body", "-o", tickets)
        assert tickets.read_bytes() == before


class TestSources:
    def test_lines_and_tables_on_standard_input(self, run, made, standard_input):
        standard_input(b"six\n\nwell hello\n")
        _, out, _ = run("predict", made / "topics", "-", "--csv", "--max-error", "1")
        assert [(row["item"], row["answer"]) for row in rows_of(out)] == [
            ("six", "numbers"),
            ("well hello", "greeting"),
        ]
        standard_input(b"id\tq\n7\tsix\n")
        _, out, _ = run("predict", made / "topics", "-", "--text", "q", "--csv")
        assert [(row["item"], row["id"]) for row in rows_of(out)] == [("six", "7")]

    def test_fit_reads_standard_input(self, run, made, standard_input, tmp_path):
        standard_input((made / "texts.csv").read_bytes())
        arguments = ["--model", "letters", "--json"]
        code, out, _ = run("fit", "-", "-o", tmp_path / "c", *arguments)
        assert code == 0
        assert json.loads(out)["classes"] == {"greeting": 2, "numbers": 2}

    def test_pictures_by_table_list_and_url(self, run, made, tmp_path, standard_input):
        photos = made / "photos"
        (photos / "album.csv").write_text("camera,picture\nA,cat/0.png\nB,dog/1.png\n")
        expected = [str(photos / "cat" / "0.png"), str(photos / "dog" / "1.png")]
        standard_input("\n".join(expected).encode())
        answers = []
        for source in ([photos / "album.csv"], ["-"], [(photos / name).as_uri() for name in expected]):
            code, out, err = run("predict", made / "birds", *source, "--csv")
            assert code == 0, err
            assert [row["item"] for row in rows_of(out)] == expected
            answers.append([row["cat"] for row in rows_of(out)])
        assert answers[0] == answers[1] == answers[2]

    def test_rows_without_text_are_left_out_where_asked(self, run, refused, made, tmp_path):
        file = tmp_path / "tickets.csv"
        file.write_text("id,body,topic\n1,six,numbers\n2,,numbers\n3,oh hello,greeting\n4,hello,\n")
        said = refused("predict", made / "topics", file, "--text", "body")
        assert f"{file}, line 3: the column 'body' is empty; fill it in, remove the row, or add" in said
        code, out, err = run("predict", made / "topics", file, "--text", "body", "--csv", "--skip-bad")
        assert (code, [row["id"] for row in rows_of(out)]) == (0, ["1", "3", "4"])
        assert err == f"Left out: {file}, line 3: the column 'body' is empty.\n"
        columns = ["--text", "body", "--label", "topic", "--model", "letters", "--json"]
        code, out, _ = run("fit", file, "-o", tmp_path / "c", *columns, "--skip-bad")
        assert (code, json.loads(out)["classes"]) == (0, {"greeting": 1, "numbers": 1})

    def test_class_folders_inside_other_folders(self, run, made, tmp_path):
        write_pictures(tmp_path / "download" / "archive" / "photos", count=2)
        arguments = ["-o", tmp_path / "c", "--model", "pixels", "--json"]
        code, out, err = run("fit", tmp_path / "download", *arguments)
        assert (code, list(json.loads(out)["classes"])) == (0, ["cat", "dog", "owl"])
        inside = tmp_path / "download" / "archive" / "photos"
        assert err.startswith(f"{tmp_path / 'download'} holds only {inside}, which is used.")


class TestInBulk:
    @pytest.fixture
    def score(self, run, tmp_path):
        ds = pytest.importorskip("pyarrow.dataset")

        def score_in_bulk(classifier, *arguments):
            code, _, err = run("predict", classifier, *arguments, "-o", tmp_path / "scores")
            assert code == 0, err
            return ds.dataset(tmp_path / "scores").to_table(), err

        return score_in_bulk

    def test_texts_of_a_table(self, score, run, made, tickets):
        arguments = [made / "topics", tickets, "--text", "body", "--chunk-size", 1, "--max-error", "1"]
        table, err = score(*arguments)
        assert "is separated by semicolons" in err
        assert table.column("item").to_pylist() == [f"{tickets}#0", f"{tickets}#1"]
        assert table.column("answer").to_pylist() == ["greeting", "numbers"]
        assert table.column("ticket_id").to_pylist() == ["T-1", "T-2"]
        assert table.column("input_answer").to_pylist() == ["none yet", ""]
        assert "are in" in score(*arguments)[1]  # resumed: all there
        _, out, _ = run("predict", *arguments[:4], "--csv")
        printed = [float(row["probability"]) for row in rows_of(out)]
        assert table.column("probability").to_pylist() == pytest.approx(printed, abs=1e-5)

    def test_lines_and_pictures(self, score, made, tmp_path, run):
        (tmp_path / "lines.txt").write_text("six\nhello\n")
        table, _ = score(made / "topics", tmp_path / "lines.txt", "--max-error", "1")
        assert table.column("answer").to_pylist() == ["numbers", "greeting"]
        photos = made / "photos"
        (photos / "two.tsv").write_text("n\tpicture\n1\tdog/0.png\n2\tcat/1.png\n3\tnone.png\n")
        output = tmp_path / "pictures"
        code, _, _ = run("predict", made / "birds", photos / "two.tsv", "-o", output, "--skip-bad")
        assert code == 0
        import pyarrow.dataset as ds

        found = ds.dataset(output).to_table()
        assert found.column("likeliest").to_pylist() == ["dog", "cat", None]
        assert "none.png" in found.column("error").to_pylist()[2]

    def test_what_cannot_be_resumed_is_refused(self, refused, made, tmp_path):
        said = refused("predict", made / "topics", "-", "-o", tmp_path / "scores")
        assert "write its answers to a file: --output answers.csv" in said
