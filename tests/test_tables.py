import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from gpldla.errors import UserError
from gpldla.methods import methods
from gpldla.tables import METHODS, RESULTS, paper_tables, read_cells, results_folder, tables

PAPER = Path(__file__).parents[2] / "shared" / "paper" / "gpldla.tex"
NOT_HERE_YET = {
    *("ML-LSTM", "SNAIL", "VERSA", "LLAMA", "Meta-Mixture", "Assoc-Align", "Neg-Margin", "Cross-Domain"),
}
CELL = {"method": "gpldla", "dataset": "cub", "backbone": "conv4", "shots": 1}
every_table = pytest.mark.parametrize("table", paper_tables().values(), ids=lambda table: table.name)


def write_cell(folder, name="one", **numbers):
    (folder / "cells").mkdir(exist_ok=True)
    (folder / "cells" / f"{name}.json").write_text(json.dumps({**CELL, **numbers}))


def text(shown):
    console = Console(width=200, file=io.StringIO())
    for table in shown:
        console.print(table)
    return console.file.getvalue()


def line(printed, title):
    """Return the one line of a printed table that begins with a title, less the spaces."""
    (found,) = [line for line in printed.splitlines() if line.split("  ")[0].strip() == title]
    return " ".join(found.split())


def shown_names(shown):
    return [name.strip() for table in shown for name in table.columns[0].cells]


class TestPaper:
    @pytest.mark.skipif(not PAPER.is_file(), reason="the paper is not here")
    @every_table
    def test_every_number_is_in_the_paper(self, table):
        printed = PAPER.read_text("utf-8")
        for row in table.rows.values():
            for number in filter(None, row):
                assert re.search(
                    rf"(?<![\d.]){re.escape(number.replace('±', chr(92) + 'pm'))}(?!\d)", printed
                )

    @pytest.mark.parametrize(
        ("table", "method", "numbers"),
        [
            ("cub", "gpldla", ["63.40 ± 0.14", "78.86 ± 0.35", "71.30 ± 0.16", "86.38 ± 0.15"]),
            ("cub", "feature-transfer", ["46.19 ± 0.64", "68.40 ± 0.79", "63.64 ± 0.91", "81.27 ± 0.57"]),
            ("calibration", "gpldla", ["0.74 ± 0.12", "1.34 ± 0.16"]),
            ("running-time", "gpldla", ["6.70 ± 0.03", "6.71 ± 0.14"]),
        ],
    )
    def test_known_rows(self, table, method, numbers):
        assert paper_tables()[table].rows[method] == numbers

    @every_table
    def test_every_row_has_one_entry_a_column(self, table):
        assert {len(row) for row in table.rows.values()} == {len(table.columns)}

    @every_table
    def test_every_row_has_a_number(self, table):
        assert all(any(row) for row in table.rows.values())

    def test_rows_are_methods_or_known_to_be_missing(self):
        names = {name for table in paper_tables().values() for name in table.rows}
        assert names - methods().keys() == NOT_HERE_YET


class TestShown:
    @every_table
    def test_every_row_and_number_of_the_paper_is_shown(self, table, tmp_path):
        shown = tables(table.name, tmp_path)
        printed = text(shown)
        for name, row in table.rows.items():
            assert (methods()[name].title if name in methods() else f"{name} (not here yet)") in printed
            for number in filter(None, row):
                assert number in printed

    def test_all_tables_are_those_of_methods(self, tmp_path):
        alone = [text(tables(name, tmp_path)) for name in paper_tables()]
        assert text(tables(METHODS, tmp_path)) == "".join(alone)

    def test_one_table_a_network_and_data_set(self, tmp_path):
        titles = [table.title for table in tables("cub", tmp_path)]
        assert titles == ["CUB: accuracy, % (cub, conv4)", "CUB: accuracy, % (cub, resnet10)"]

    def test_a_measured_cell_stands_beside_the_papers_number(self, tmp_path):
        write_cell(tmp_path, accuracy=61.234, interval=0.567)
        conv4, resnet10 = tables("cub", tmp_path)
        assert line(text([conv4]), "GPLDLA") == "GPLDLA 63.40 ± 0.14 61.23 ± 0.57 78.86 ± 0.35"
        assert line(text([resnet10]), "GPLDLA") == "GPLDLA 71.30 ± 0.16 86.38 ± 0.15"

    def test_a_note_is_a_mark_and_a_caption(self, tmp_path):
        write_cell(tmp_path, "one", accuracy=61.2, note="at 48 pixels")
        write_cell(tmp_path, "two", shots=5, accuracy=75.1, note="one seed")
        write_cell(tmp_path, "three", method="protonet", accuracy=50.1, note="at 48 pixels")
        shown = tables("cub", tmp_path)[0]
        printed = text([shown])
        marks = dict(reversed(entry.split(" ", 1)) for entry in shown.caption.split("\n"))
        assert sorted(marks.values()) == ["*", "**"]
        first, second = marks["at 48 pixels"], marks["one seed"]
        assert line(printed, "GPLDLA").endswith(f"61.20{first} 78.86 ± 0.35 75.10{second}")
        assert f" 50.10{first} " in line(printed, "ProtoNet")

    def test_a_cell_without_a_note_has_no_mark(self, tmp_path):
        write_cell(tmp_path, accuracy=61.2)
        shown = tables("cub", tmp_path)[0]
        assert shown.caption is None
        assert "*" not in text([shown])

    def test_a_table_takes_the_number_that_it_is_about(self, tmp_path):
        write_cell(tmp_path, accuracy=61.2, interval=0.5, ece_paper_temperature=0.987)
        assert line(text(tables("calibration", tmp_path)), "GPLDLA") == "GPLDLA 0.74 ± 0.12 0.99 1.34 ± 0.16"

    def test_a_cell_without_that_number_is_left_out(self, tmp_path):
        write_cell(tmp_path, accuracy=61.2)
        assert line(text(tables("calibration", tmp_path)), "GPLDLA") == "GPLDLA 0.74 ± 0.12 1.34 ± 0.16"

    def test_a_method_that_the_paper_lacks_gets_a_row_before_gpldla(self, tmp_path):
        write_cell(tmp_path, method="maml-first-order", accuracy=55.5)
        conv4, resnet10 = tables("cub", tmp_path)
        assert shown_names([conv4])[-2:] == ["MAML (first order)", "GPLDLA"]
        assert "MAML (first order)" not in shown_names([resnet10])

    def test_measured_times_stand_beside_the_papers(self, tmp_path):
        rows = [
            {"method": "GPLDLA", "shots": 1, "batch": 1, "us_an_episode": 1234.0, "ratio": 1.0},
            {"method": "MetaQDA, MAP", "shots": 5, "batch": 1, "us_an_episode": 5678.0, "ratio": 4.6},
            {"method": "MetaQDA, MAP", "shots": 5, "batch": 4, "us_an_episode": 9999.0, "ratio": 9.9},
        ]
        for device in ("cuda", "cpu"):
            written = {"command": "gpldla bench heads", "device": f"a {device} machine", "rows": rows}
            (tmp_path / f"bench_heads_{device}.json").write_text(json.dumps(written))
        printed = text(tables("running-time", tmp_path))
        assert line(printed, "GPLDLA") == "GPLDLA 6.70 ± 0.03 1.23 1.00 6.71 ± 0.14"
        assert line(printed, "MetaQDA (MAP)") == "MetaQDA (MAP) 20.29 ± 0.22 22.49 ± 0.67 5.68 4.60"
        assert "a cuda machine" in printed
        assert "a cpu machine" in printed


class TestRefused:
    def test_an_unknown_table_suggests_the_nearest(self, tmp_path):
        with pytest.raises(UserError, match="There is no table 'miniimagnet'; did you mean 'miniimagenet'"):
            tables("miniimagnet", tmp_path)

    @pytest.mark.parametrize("content", ["{", "[]", '"text"', '{"method": "gpldla"}'])
    def test_a_broken_cell_is_named(self, tmp_path, content):
        (tmp_path / "cells").mkdir()
        path = tmp_path / "cells" / "broken.json"
        path.write_text(content)
        with pytest.raises(UserError, match=re.escape(str(path))):
            tables("cub", tmp_path)

    def test_a_missing_folder_is_named(self, tmp_path):
        with pytest.raises(UserError, match=re.escape(f"There is no folder {tmp_path / 'none'}")):
            tables("cub", tmp_path / "none")


class TestOurs:
    def test_the_results_are_those_of_the_checkout(self):
        assert results_folder() == RESULTS[-1]

    def test_every_measured_cell_has_a_place(self):
        settings = {
            (column.get("dataset"), column.get("backbone"), column["shots"])
            for table in paper_tables().values()
            for column in table.columns
        }
        for cell in read_cells(results_folder()):
            assert (cell["dataset"], cell["backbone"], cell["shots"]) in settings
            assert cell["method"] in methods()


class TestCommand:
    def test_prints_the_papers_numbers_and_runs_nothing(self, run, monkeypatch):
        def work(*args, **options):
            raise AssertionError("something was run")

        for name in ("training.train", "bench.heads.seconds_a_call", "data.load_protocol"):
            monkeypatch.setattr(f"gpldla.{name}", work)
        code, out, err = run("tables", "methods")
        assert (code, err) == (0, "")
        assert "GPLDLA" in out
        assert "63.40" in out
        assert run("tables")[1] == out, "what is shown without a name"

    def test_one_table(self, run, tmp_path):
        write_cell(tmp_path, accuracy=61.2)
        code, out, _ = run("tables", "cub", "--results", tmp_path)
        assert code == 0
        assert "61.20" in out
        assert "tieredImageNet" not in out

    def test_json_has_the_paper_and_the_cells(self, run, tmp_path):
        write_cell(tmp_path, accuracy=61.2)
        code, out, _ = run("tables", "--json", "--results", tmp_path)
        assert code == 0
        printed = json.loads(out)
        assert printed["ours"] == [{**CELL, "accuracy": 61.2}]
        assert printed["paper"]["cub"]["rows"]["gpldla"][0] == "63.40 ± 0.14"

    def test_an_unknown_table_is_one_line(self, refused):
        assert refused("tables", "cubs") == "gpldla: There is no table 'cubs'; did you mean 'cub'?"

    @pytest.mark.parametrize("options", [[], ["--json"]])
    def test_a_missing_folder_is_one_line(self, refused, tmp_path, options):
        assert str(tmp_path / "none") in refused("tables", "--results", tmp_path / "none", *options)
