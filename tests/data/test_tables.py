"""Tables as people have them: delimiters, encodings, formats, missing cells, and what is said about them."""

import csv
import io
import sys
from types import SimpleNamespace

import pytest

from gpldla.data.tables import open_lines, open_table, passthrough_names
from gpldla.utils.errors import UserError
from tests.classifier.test_file import one_sentence

ROWS = [("T-1", "Where is my parcel?", "delivery"), ("T-2", 'für "Jürgen"; bitte,\nsofort', "billing")]


def read_table(file, columns):
    table = open_table(file, columns)
    return [table.filled(column) for column in columns]


@pytest.fixture
def table(tmp_path):
    """Write a table; return its file."""

    def write(content):
        file = tmp_path / "texts.csv"
        if isinstance(content, str):
            content = content.encode()
        file.write_bytes(content)
        return file

    return write


def sentence_about(file, columns=("text", "label")):
    """Read a table that must be refused in one sentence, which names the file; return the rest of it."""
    with pytest.raises(UserError) as error:
        read_table(file, list(columns))
    text = one_sentence(error)
    assert text.startswith(str(file))
    return text.removeprefix(str(file))


class TestTables:
    def test_give_the_columns_asked_for(self, table):
        file = table("id,label,text\n1,a,first\n2,b,second\n")
        assert read_table(file, ["text", "label"]) == [["first", "second"], ["a", "b"]]
        assert read_table(file, ["label"]) == [["a", "b"]]

    @pytest.mark.parametrize("newline", ["\n", "\r\n"])
    def test_quotes_commas_and_lines_in_cells(self, table, newline):
        rows = ["text,label", '"one, two",a', '"a ""word""",b', f'"line 1{newline}line 2","c"']
        file = table(newline.join(rows))
        texts, labels = read_table(file, ["text", "label"])
        assert texts == ["one, two", 'a "word"', f"line 1{newline}line 2"]
        assert labels == ["a", "b", "c"]

    def test_a_byte_order_mark_belongs_to_no_column(self, table):
        file = table("\ufefftext,label\nqué,a\nΩ ქ,b\n".encode())
        assert read_table(file, ["text", "label"]) == [["qué", "Ω ქ"], ["a", "b"]]

    def test_space_around_cells_and_empty_lines_are_dropped(self, table):
        file = table("text,label\n\n  one  ,a\n\n\ntwo, b \n\n")
        assert read_table(file, ["text", "label"]) == [["one", "two"], ["a", "b"]]

    def test_other_columns_and_cells_beyond_the_header_may_be_empty(self, table):
        assert read_table(table("text,note,label\none,,a\n"), ["text", "label"]) == [["one"], ["a"]]
        assert read_table(table("text,label\none,a,,\n"), ["text", "label"]) == [["one"], ["a"]]

    @pytest.mark.parametrize(
        ("content", "line", "column"),
        [
            ("text,label\none,a\n,b\n", 3, "text"),
            ("text,label\none,a\ntwo,\n", 3, "label"),
            ("text,label\none,a\ntwo,   \n", 3, "label"),
            ("text,label\none\n", 2, "label"),
            ('text,label\n"two\nlines",a\n"",b\n', 4, "text"),
            ("text,label\n\n\none,a\n,b\n", 5, "text"),
        ],
        ids=["text", "label", "blank", "too few cells", "after a cell of two lines", "after empty lines"],
    )
    def test_an_empty_cell_is_named_by_line_and_column(self, table, content, line, column):
        said = sentence_about(table(content))
        assert (
            said == f", line {line}: the column {column!r} is empty; fill it in, remove the row, or add"
            " --skip-bad."
        )

    @pytest.mark.parametrize("row", ["hello, dear,greeting", "one,a,b"])
    def test_too_many_cells_are_named_by_line(self, table, row):
        assert ", line 3" in sentence_about(table(f"text,label\none,a\n{row}\n"))

    def test_a_missing_column_suggests_the_nearest(self, table):
        file = table("text,labels,note\none,a,x\n")
        assert sentence_about(file) == " has no column 'label'; did you mean 'labels'?"
        assert sentence_about(file, ["Text"]) == " has no column 'Text'; did you mean 'text'?"
        assert sentence_about(file, ["question"]) == (
            " has no column 'question'; known are labels, note, text."
        )

    def test_no_rows_below_the_header_are_refused(self, table):
        for content in ("text,label", "text,label\n", "text,label\n\n\n"):
            assert sentence_about(table(content)) == " holds no rows below its header."

    def test_an_empty_file_is_refused(self, table):
        for content in (b"", b"\n\n", b"\xef\xbb\xbf"):
            sentence_about(table(content))

    def test_an_empty_file_is_called_empty(self, table):
        assert "known are" not in sentence_about(table(b""))

    @pytest.mark.parametrize(
        "content",
        [
            b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR",
            b"\x1f\x8b\x08\x00" + bytes(range(256)),
            bytes(100),
            b"PK\x03\x04zip",
            b"{}",
        ],
        ids=["picture", "compressed", "zeros", "archive", "braces"],
    )
    def test_what_is_no_table_is_refused(self, table, content):
        sentence_about(table(content))

    def test_an_open_quote_and_a_cell_without_end_are_refused(self, table):
        assert "cannot be read as a CSV" in sentence_about(table('text,label\n"one,a\ntwo,b\n'))
        assert "cannot be read as a CSV" in sentence_about(table('text,label\n"one"x,a\n'))
        huge = "x" * (csv.field_size_limit() + 1)
        assert "cannot be read as a CSV" in sentence_about(table(f"text,label\n{huge},a\n"))

    def test_a_missing_file_and_a_folder_are_named(self, tmp_path):
        with pytest.raises(UserError, match=f"There is no file {tmp_path / 'none.csv'}."):
            read_table(tmp_path / "none.csv", ["text"])
        assert "cannot be read" in sentence_about(tmp_path)


class TestFormats:
    @pytest.fixture
    def frame(self):
        pandas = pytest.importorskip("pandas")
        return pandas.DataFrame(ROWS, columns=["ticket_id", "body", "topic"])

    @pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
    @pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
    def test_delimiters_and_encodings_are_found_and_said(self, frame, tmp_path, delimiter, encoding):
        file = tmp_path / "tickets.csv"
        frame.to_csv(file, sep=delimiter, encoding=encoding, index=False)
        for wanted in ((), ("body", "topic")):
            table = open_table(file, wanted)
            assert list(zip(*table.columns.values())) == ROWS
            assert ("windows-1252" in " ".join(table.notes)) == (encoding == "cp1252")
            assert ("is separated by" in " ".join(table.notes)) == (delimiter != ",")

    def test_they_can_be_named(self, tmp_path):
        file = tmp_path / "tickets.csv"
        file.write_bytes("body^topic\nпосылка^delivery\n".encode("koi8-r"))
        with pytest.raises(UserError, match="name it with --delimiter"):
            open_table(file, ["body"], encoding="koi8-r")
        table = open_table(file, ["body"], encoding="koi8-r", delimiter="^")
        assert table.columns == {"body": ["посылка"], "topic": ["delivery"]}
        assert table.notes == []
        with pytest.raises(UserError, match="There is no encoding 'kio8'"):
            open_table(file, encoding="kio8")

    @pytest.mark.parametrize("name", ["t.tsv", "t.jsonl", "t.json", "t.parquet", "t.xlsx"])
    def test_other_formats(self, frame, tmp_path, name):
        pytest.importorskip("pyarrow")
        pytest.importorskip("openpyxl")
        file = tmp_path / name
        write = {
            ".tsv": lambda: frame.to_csv(file, sep="\t", index=False),
            ".jsonl": lambda: frame.to_json(file, orient="records", lines=True),
            ".json": lambda: frame.to_json(file, orient="records"),
            ".parquet": lambda: frame.to_parquet(file),
            ".xlsx": lambda: frame.to_excel(file, index=False),
        }
        write[file.suffix]()
        table = open_table(file, ["body", "topic"])
        assert list(zip(*table.columns.values())) == ROWS
        assert table.notes == []

    @pytest.mark.parametrize("name", ["t.jsonl", "t.parquet", "t.xlsx"])
    def test_values_keep_their_types_and_are_missing_where_they_are(self, tmp_path, name):
        pandas = pytest.importorskip("pandas")
        file = tmp_path / name
        number = pandas.array([1, None, 3], dtype="Int64")
        frame = pandas.DataFrame({"n": number, "label": ["NA", "null", None], "share": [0.5, None, 2.0]})
        if name == "t.jsonl":
            frame.to_json(file, orient="records", lines=True)
        else:
            frame.to_parquet(file) if name == "t.parquet" else frame.to_excel(file, index=False)
        table = open_table(file)
        assert [value or None for value in table.columns["n"]] == [1, None, 3]
        assert table.column("n") == ["1", "", "3"]
        assert table.column("label") == ["NA", "null", ""]  # these words are labels, not missing values
        assert table.column("share") == ["0.5", "", "2"]

    def test_standard_input_is_csv_or_json_lines(self, monkeypatch):
        from pathlib import Path

        for content in (b"body;topic\none;a\n", b'{"body": "one", "topic": "a"}\n'):
            monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content)))
            assert open_table(Path("-"), ["body"]).columns == {"body": ["one"], "topic": ["a"]}

    def test_lines(self, tmp_path):
        (tmp_path / "lines.txt").write_bytes("\ufeffone\r\n\r\n  \n two, \u2028 2 \n".encode())
        table = open_lines(tmp_path / "lines.txt")
        assert (table.columns, table.places) == ({"text": ["one", "two, \u2028 2"]}, ["line 1", "line 4"])

    def test_rows_with_empty_cells_can_be_left_out(self, table):
        read = open_table(table("id,text,label\n1,one,a\n2, ,b\n3,three,\n4,four,d\n"))
        kept, sentences = read.without_empty("text", "label")
        assert kept.columns == {"id": ["1", "4"], "text": ["one", "four"], "label": ["a", "d"]}
        assert kept.places == ["line 2", "line 5"]
        assert [sentence.removeprefix(f"{read.name}, ") for sentence in sentences] == [
            "line 3: the column 'text' is empty.",
            "line 4: the column 'label' is empty.",
        ]


def test_two_columns_of_one_name(tmp_path):
    (tmp_path / "t.csv").write_text("text,label,label\na,b,c\n")
    assert open_table(tmp_path / "t.csv", ["text"]).columns == {
        "text": ["a"],
        "label": ["b"],
        "label.1": ["c"],
    }
    with pytest.raises(UserError, match="has two columns 'label'; rename one"):
        open_table(tmp_path / "t.csv", ["text", "label"])


def test_columns_that_are_passed_on_never_take_the_place_of_the_outputs_own():
    names = passthrough_names(["id", "answer", "input_answer", "item"], ["item", "answer"])
    assert names == {
        "id": "id",
        "answer": "input_input_answer",
        "input_answer": "input_answer",
        "item": "input_item",
    }
