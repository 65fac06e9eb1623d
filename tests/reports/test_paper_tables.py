import io
import json
import re
import shlex
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console

from gpldla.reports.paper_tables import METHODS, RESULTS, paper_tables, read_cells, results_folder, tables
from gpldla.reports.paper_tables.page import page_text, write_page
from gpldla.reports.paper_tables.plots import confidence_plots
from gpldla.reports.paper_tables.side_by_side import (
    FIVE_SHOT,
    STAND_IN_NETWORKS,
    STAND_INS,
    command,
    missing_images,
)
from gpldla.training.methods import methods
from gpldla.training.recipe import SHIPPED, parse_override, read_recipe
from gpldla.utils.errors import UserError
from tests.data.trees import write_cub

ROOT = Path(__file__).parents[2]
PAPER = ROOT.parent / "shared" / "paper" / "gpldla.tex"
NOT_HERE_YET = {
    "Cross-Domain",
}
CELL = {"method": "gpldla", "dataset": "cub", "backbone": "conv4", "shots": 1}
SHORT = {"accuracy": 50.0, "notes": ["Short."]}  # as cells were before they named a recipe
FULL = {"recipe": "cub", "accuracy": 66.0, "interval": 0.4}
AS_THE_PAPER = {"recipe": "cub-paper", "accuracy": 63.3, "interval": 0.4}
BINS = {
    "edges": [0.0, 0.25, 0.5, 0.75, 1.0],
    "counts": [0.0, 10.0, 100.0, 200.0],
    "accuracy": [None, 0.5, 0.6, 0.9],
    "confidence": [None, 0.45, 0.65, 0.88],
}
every_table = pytest.mark.parametrize("table", paper_tables().values(), ids=lambda table: table.name)


def write_cell(folder, name="one", **numbers):
    (folder / "cells").mkdir(exist_ok=True)
    (folder / "cells" / f"{name}.json").write_text(json.dumps({**CELL, **numbers}))


def text(shown, width=200):
    console = Console(width=width, file=io.StringIO())
    for table in shown:
        console.print(table, crop=False)
    return console.file.getvalue()


def line(printed, title):
    """Return the one line of a printed table that begins with a title, less the spaces."""
    (found,) = [line for line in printed.splitlines() if re.match(rf"{re.escape(title)}(  |  *[\d–†])", line)]
    return " ".join(found.split())


def shown_names(shown):
    return [name for table in shown for name, _ in table.rows]


def markdown(table):
    return "\n".join(table.markdown())


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
        printed = text(tables(table.name, tmp_path))
        for name, row in table.rows.items():
            assert (methods()[name].title if name in methods() else f"{name} (not implemented)") in printed
            for number in filter(None, row):
                assert number in printed

    def test_without_a_name_all_tables_are_shown(self, tmp_path):
        alone = [text(tables(name, tmp_path)) for name in paper_tables()]
        assert text(tables(None, tmp_path)) == "".join(alone)
        assert text(tables(METHODS, tmp_path)) == "".join(alone), "nothing more is known of the methods"

    def test_one_table_a_network_and_data_set(self, tmp_path):
        titles = [table.title for table in tables("cub", tmp_path)]
        assert titles == ["CUB: accuracy, % (cub, conv4)", "CUB: accuracy, % (cub, resnet10)"]

    def test_a_measured_cell_stands_beside_the_papers_number(self, tmp_path):
        write_cell(tmp_path, accuracy=63.234, interval=0.567)
        conv4, resnet10 = tables("cub", tmp_path)
        assert line(text([conv4]), "GPLDLA") == "GPLDLA 63.40 ± 0.14 63.23 ± 0.57 78.86 ± 0.35 –"
        assert line(text([resnet10]), "GPLDLA") == "GPLDLA 71.30 ± 0.16 – 86.38 ± 0.15 –"

    def test_a_gap_is_explained(self, tmp_path):
        assert "–: not measured yet." in tables("cub", tmp_path)[0].notes

    def test_the_larger_of_both_margins_is_shown(self, tmp_path):
        write_cell(tmp_path, "one", **FULL, spread=0.7)
        write_cell(tmp_path, "five", shots=5, recipe="cub", accuracy=79.0, interval=0.3, spread=None)
        printed = line(text(tables("cub", tmp_path)[:1]), "GPLDLA")
        assert "66.00 ± 0.70" in printed
        assert "79.00 ± 0.30" in printed

    def test_a_note_is_a_mark_and_a_sentence(self, tmp_path):
        write_cell(tmp_path, "one", **FULL, notes=["At 48 pixels."])
        write_cell(tmp_path, "two", shots=5, recipe="cub", accuracy=78.9, notes=["One seed."])
        numbers = {"method": "protonet", "recipe": "cub", "accuracy": 52.1}
        write_cell(tmp_path, "three", **numbers, notes=["At 48 pixels.", "One seed."])
        shown = tables("cub", tmp_path)[0]
        marks = {note[2:]: note[0] for note in shown.notes if note[0] in "†‡"}
        assert sorted(marks) == ["At 48 pixels.", "One seed."]
        first, second = marks["At 48 pixels."], marks["One seed."]
        assert first != second
        printed = text([shown])
        assert line(printed, "GPLDLA").endswith(f" {first}▲66.00 ± 0.40 78.86 ± 0.35 {second}78.90")
        assert f" {first} {second}52.10 " in line(printed, "ProtoNet")
        assert f"| **66.00 ± 0.40** {first} |" in markdown(shown)

    def test_a_number_of_another_network_than_its_column_says_so(self, tmp_path):
        conv4, _, resnet18, *_ = tables("miniimagenet", tmp_path)
        about = paper_tables()["miniimagenet"].about
        assert about.keys() <= paper_tables()["miniimagenet"].rows.keys()
        marks = {note[2:]: note[0] for note in conv4.notes if note[0] in "†‡§¶"}
        for method, sentence in about.items():
            (row,) = [entries for name, entries in conv4.rows if name == methods()[method].title]
            assert all(entry.mark == marks[sentence] for entry in row[::2] if entry.text)
        assert not {*about.values()} & {note[2:] for note in resnet18.notes}

    def test_what_holds_for_all_cells_needs_no_mark(self, tmp_path):
        write_cell(tmp_path, "one", **FULL, notes=["At 48 pixels.", "One seed."])
        write_cell(tmp_path, "two", shots=5, recipe="cub", accuracy=78.9, notes=["At 48 pixels."])
        shown = tables("cub", tmp_path)[0]
        assert shown.notes[:2] == ["At 48 pixels.", "† One seed."]
        assert line(text([shown]), "GPLDLA").endswith(" †▲66.00 ± 0.40 78.86 ± 0.35 78.90")

    def test_a_method_that_the_paper_lacks_gets_a_row_before_gpldla(self, tmp_path):
        write_cell(tmp_path, method="maml-first-order", accuracy=55.5)
        conv4, resnet10 = tables("cub", tmp_path)
        assert shown_names([conv4])[-2:] == ["MAML (first order)", "GPLDLA"]
        assert "MAML (first order)" not in shown_names([resnet10])

    def test_a_network_that_only_one_method_wants_stands_for_the_usual_one(self, tmp_path):
        write_cell(tmp_path, method="relationnet", backbone="conv4np", accuracy=61.5)
        assert "61.50" in line(text(tables("cub", tmp_path)[:1]), "RelationNet")

    @pytest.mark.parametrize("name", [*paper_tables(), METHODS])
    def test_a_terminal_of_80_columns_is_wide_enough(self, name, tmp_path):
        for method in methods():
            for shots in (1, 5):
                for recipe in ("cub", "cub-paper"):
                    numbers = {"accuracy": 99.0, "interval": 0.5, "ece_paper_temperature": 9.0}
                    numbers |= {"method": method, "shots": shots, "recipe": recipe, "notes": ["A note."]}
                    write_cell(tmp_path, f"{method}-{shots}-{recipe}", **numbers)
        for printed in text(tables(name, tmp_path), width=80).splitlines():
            assert len(printed) <= 80 or printed.startswith("    gpldla ")  # a command to copy
            assert "…" not in printed


class TestWaysOfTraining:
    def test_the_papers_way_has_a_row_of_its_own(self, tmp_path):
        write_cell(tmp_path, "ours", **FULL)
        write_cell(tmp_path, "as the paper", **AS_THE_PAPER)
        shown = tables("cub", tmp_path)[0]
        assert shown_names([shown])[-2:] == ["GPLDLA, trained as the paper says", "GPLDLA"]
        printed = text([shown])
        assert "63.30 ± 0.40" in line(printed, "GPLDLA, trained as the paper says")
        assert "66.00 ± 0.40" in line(printed, "GPLDLA")

    def test_so_have_the_ablations(self, tmp_path):
        write_cell(tmp_path, **AS_THE_PAPER, method="laplace")
        names = shown_names(tables("cub", tmp_path)[:1])
        assert "Laplace approximation, trained as the paper says" in names
        assert "Laplace approximation" not in names, "nothing was measured"

    @pytest.mark.parametrize("full", [FULL, AS_THE_PAPER], ids=["ours", "as the paper"])
    def test_a_full_training_wins_over_a_short_one(self, tmp_path, full):
        write_cell(tmp_path, "a", **SHORT)
        write_cell(tmp_path, "b", **full)
        write_cell(tmp_path, "c", **SHORT, method="protonet")
        assert [cell.file.stem for cell in read_cells(tmp_path)] == ["b", "c"]

    @pytest.mark.parametrize(
        ("wrong", "sentence"),
        [
            ({"accuracy": "70"}, "accuracy must be a number, not '70'"),
            ({"accuracy": None}, "accuracy must be a number, not None"),
            ({"accuracy": float("nan")}, "accuracy must be a number, not nan"),
            ({"interval": "x"}, "interval must be a number, not 'x'"),
            ({"dataset": ["x"]}, "dataset must be a word"),
            ({"shots": "1"}, "shots must be a whole number, not '1'"),
        ],
    )
    def test_what_is_no_number_is_named(self, tmp_path, wrong, sentence):
        write_cell(tmp_path, "a", **{**FULL, **wrong})
        with pytest.raises(UserError, match=rf"a\.json: {sentence}"):
            read_cells(tmp_path)

    def test_two_of_a_kind_are_refused(self, tmp_path):
        write_cell(tmp_path, "a", **FULL)
        write_cell(tmp_path, "b", **FULL)
        with pytest.raises(UserError, match=r"a\.json and .*b\.json describe the same cell; remove one"):
            read_cells(tmp_path)


class TestTheBetter:
    @pytest.mark.parametrize(
        ("accuracy", "sign", "bold"),
        [(64.0, "▲", "64.00 ± 0.40"), (62.8, "▼", "63.40 ± 0.14"), (63.9, "", None), (62.9, "", None)],
    )
    def test_is_marked_if_the_margins_do_not_overlap(self, tmp_path, accuracy, sign, bold):
        write_cell(tmp_path, recipe="cub", accuracy=accuracy, interval=0.4)
        shown = tables("cub", tmp_path)[0]
        row = line(text([shown]), "GPLDLA")
        assert row == f"GPLDLA 63.40 ± 0.14 {sign}{accuracy:.2f} ± 0.40 78.86 ± 0.35 –"
        assert re.findall(r"\*\*(.+?)\*\*", markdown(shown)) == ([bold] if bold else [])
        assert ("▲ ours is better" in text([shown])) == bool(sign), "the rule stands where it is used"

    def test_is_bold_in_a_terminal(self, tmp_path):
        write_cell(tmp_path, recipe="cub", accuracy=70.0)
        console = Console(width=100, file=io.StringIO(), force_terminal=True, color_system=None)
        console.print(tables("cub", tmp_path)[0])
        bold = Console(width=100, file=io.StringIO(), force_terminal=True, color_system="standard")
        bold.print(tables("cub", tmp_path)[0])
        assert "▲70.00" in console.file.getvalue()
        assert re.search(r"\x1b\[1m *▲70\.00", bold.file.getvalue())

    def test_is_not_said_of_short_trainings(self, tmp_path):
        write_cell(tmp_path, accuracy=70.0, notes=["Short."])
        shown = tables("cub", tmp_path)[0]
        assert "▲" not in text([shown])
        assert "**" not in markdown(shown)
        assert "† Short. Not compared with the paper." in shown.notes

    @pytest.mark.parametrize(("error", "sign"), [(0.61, "▲"), (0.87, "▼"), (0.8, "")])
    def test_is_the_lower_calibration_error(self, tmp_path, error, sign):
        write_cell(tmp_path, recipe="cub", ece_paper_temperature=error)
        printed = text(tables("calibration", tmp_path)[:1])
        assert line(printed, "GPLDLA") == f"GPLDLA 0.74 ± 0.12 {sign}{error:.2f} – –"

    def test_counts_the_margin_of_our_calibration_error(self, tmp_path):
        write_cell(tmp_path, recipe="cub", ece_paper_temperature=0.61, ece_paper_temperature_spread=0.02)
        assert " 0.61 ± 0.02 " in line(text(tables("calibration", tmp_path)[:1]), "GPLDLA")


class TestCalibration:
    def test_has_the_error_with_a_temperature_that_a_user_can_have(self, tmp_path):
        errors = {"ece_paper_temperature": 0.7, "ece_val_temperature": 1.1, "ece": 2.3}
        write_cell(tmp_path, accuracy=61.2, interval=0.5, recipe="cub", **errors)
        one, five = tables("calibration", tmp_path)
        assert line(text([one]), "GPLDLA") == "GPLDLA 0.74 ± 0.12 0.70 1.10 2.30"
        assert line(text([five]), "GPLDLA") == "GPLDLA 1.34 ± 0.16 –"
        assert any("T val.: from validation classes" in note for note in one.notes)

    def test_a_cell_without_that_number_is_left_out(self, tmp_path):
        write_cell(tmp_path, accuracy=61.2)
        assert line(text(tables("calibration", tmp_path)[:1]), "GPLDLA") == "GPLDLA 0.74 ± 0.12 –"


class TestMissingImages:
    @pytest.mark.parametrize(
        ("dataset", "images"),
        [
            ("miniimagenet", ["miniImageNet"]),
            ("tieredimagenet", ["tieredImageNet"]),
            ("mini-cub", ["miniImageNet"]),
            ("cub", []),
            ("omniglot-emnist", []),
            ("tinyimagenet-cub", []),
        ],
    )
    def test_are_known(self, dataset, images):
        assert missing_images(dataset) == images

    def test_are_said_with_the_command_that_runs_it(self, tmp_path):
        shown = tables("tieredimagenet", tmp_path)[1]
        assert line(text([shown]).replace("no images", "–"), "GPLDLA").count("–") == 2
        told = "gpldla train tieredimagenet-paper -o runs/tieredimagenet && gpldla eval runs/tieredimagenet"
        assert f"\n    {told}\n" in text([shown], width=80), "in one piece"
        assert f"\n\n    {told}\n" in markdown(shown)
        assert any("needs the images of tieredImageNet" in note for note in shown.notes)

    def test_are_not_missed_once_it_has_been_run(self, tmp_path):
        write_cell(tmp_path, dataset="miniimagenet", recipe="miniimagenet", accuracy=54.0, interval=0.2)
        printed = text(tables("miniimagenet", tmp_path)[:1])
        assert "▲54.00 ± 0.20" in line(printed, "GPLDLA")

    @pytest.mark.parametrize(
        "setting",
        [
            setting
            for table in paper_tables().values()
            if table.name != "running-time"
            for setting in table.settings
        ],
        ids="-".join,
    )
    def test_the_command_trains_that_network_on_those_images(self, setting):
        dataset, backbone = setting
        training, test = command(dataset, backbone).split(" && ")
        _, verb, recipe, *options = shlex.split(training)
        settings = dict(parse_override(options[i + 1]) for i, word in enumerate(options) if word == "--set")
        trained = read_recipe(recipe, settings)
        assert (verb, trained.dataset, trained.backbone) == ("train", dataset, backbone)
        assert test == f"gpldla eval {options[options.index('-o') + 1]}"

    @pytest.mark.parametrize("recipe", ["miniimagenet", "tieredimagenet", "mini-cub"])
    def test_five_shots_are_what_the_recipe_says(self, recipe):
        assert FIVE_SHOT in (SHIPPED / f"{recipe}-paper.toml").read_text("utf-8")

    @pytest.mark.parametrize("recipe", ["miniimagenet", "tieredimagenet", "mini-cub"])
    def test_who_lacks_them_is_told_where_they_come_from_and_go(self, refused, tmp_path, recipe):
        run = tmp_path / "run"
        write_cub(tmp_path / "cub")
        complaint = refused(
            "train", f"{recipe}-paper", "-o", run, "--data-root", tmp_path, "--cache", tmp_path
        )
        wanted = {"mini-cub": "miniimagenet"}.get(recipe, recipe)
        assert "get it from https://" in complaint
        assert str(tmp_path / wanted) in complaint


class TestStandIns:
    def test_have_tables_of_their_own_without_the_papers_numbers(self, tmp_path):
        for method in ("gpldla", "protonet"):
            numbers = {"method": method, "dataset": "tinyimagenet-mini", "recipe": "tinyimagenet-mini"}
            write_cell(tmp_path, method, **numbers, accuracy=45.0, interval=0.4)
        real, stand_in, resnet = tables("miniimagenet", tmp_path)
        assert "45.00" not in text([real, resnet])
        assert line(text([stand_in]), "GPLDLA") == "GPLDLA 45.00 ± 0.40 –"
        assert shown_names([stand_in]) == ["ProtoNet", "GPLDLA"]
        assert all(name == "ours" for _, name in stand_in.head)
        assert "not comparable with its results for miniImageNet." in stand_in.notes[0]

    def test_stand_in_the_papers_order_and_the_best_is_marked(self, tmp_path):
        best = {1: "gpdkt-bncosine", 5: "gpldla"}
        for shots in (1, 5):
            for place, method in enumerate(("gpldla", "laplace", "gpdkt-bncosine", "protonet")):
                numbers = {"method": method, "dataset": "tinyimagenet-mini", "recipe": "tinyimagenet-mini"}
                numbers |= {"shots": shots, "interval": 0.4, "accuracy": 45.0 + 0.5 * place}
                numbers["accuracy"] += 2 * (method == best[shots])
                write_cell(tmp_path, f"{method}-{shots}", **numbers)
        _, stand_in, _ = tables("miniimagenet", tmp_path)
        names = ["ProtoNet", "GPDKT (BN + cosine)", "Laplace approximation", "GPLDLA"]
        assert shown_names([stand_in]) == names
        # 48.0 ± 0.4 is clear of 46.5 ± 0.4, and 47.0 ± 0.4 overlaps with it
        assert re.findall(r"\*\*(.+?)\*\*", markdown(stand_in)) == ["48.00 ± 0.40"]
        assert "▲48.00 ± 0.40" in line(text([stand_in]), "GPDKT (BN + cosine)")
        assert "▲ the best" in text([stand_in])

    def test_the_papers_order_holds_where_its_own_table_lacks_the_methods(self, tmp_path):
        for method in ("gpldla", "gpdkt-bncosine", "protonet"):
            numbers = {"method": method, "dataset": "tinyimagenet-cub", "backbone": "resnet18-84"}
            write_cell(tmp_path, method, **numbers, recipe="tinyimagenet-cub", accuracy=45.0, interval=0.4)
        (stand_in,) = [
            t for t in tables(None, tmp_path) if t.title.endswith("(tinyimagenet-cub, resnet18-84)")
        ]
        assert shown_names([stand_in]) == ["ProtoNet", "GPDKT (BN + cosine)", "GPLDLA"]

    @pytest.mark.parametrize("table", ["miniimagenet", "cross-domain"])
    def test_are_announced_before_they_are_measured(self, tmp_path, table):
        (stand_in,) = [one for one in tables(table, tmp_path) if one.title.startswith("Stand-in")]
        assert shown_names([stand_in]) == ["GPLDLA"]
        assert stand_in.notes[-1].startswith("`gpldla train tinyimagenet-")


class TestTimes:
    @pytest.fixture
    def folder(self, tmp_path):
        rows = [
            {"method": "GPLDLA", "shots": 1, "batch": 1, "us_an_episode": 1234.0, "ratio": 1.0},
            {"method": "GPLDLA", "shots": 1, "batch": 4096, "us_an_episode": 1.5, "ratio": 1.0},
            {"method": "MetaQDA, MAP", "shots": 5, "batch": 1, "us_an_episode": 5678.0, "ratio": 4.6},
            {"method": "MetaQDA, MAP", "shots": 5, "batch": 64, "us_an_episode": 9999.0, "ratio": 9.9},
        ]
        for device, name in (("cuda", "A GPU, torch 9"), ("cpu", "Two cores, torch 9")):
            written = {"command": "gpldla bench heads", "device": name, "features": 1600, "rows": rows}
            written["commit"] = f"{device}01"
            (tmp_path / f"bench_heads_{device}.json").write_text(json.dumps(written))
        return tmp_path

    def test_stand_in_one_table(self, folder):
        (shown,) = tables("running-time", folder)
        assert shown.title.endswith("d = 1600")
        assert shown.head[2:] == [
            ("A GPU", "single, ms"),
            ("A GPU", "batch of 4,096, µs"),
            ("CPU", "× GPLDLA"),
        ]
        rows = {(name, entries[0].text): [e.text for e in entries[1:]] for name, entries in shown.rows}
        assert rows["GPLDLA", "1"] == ["6.70 ± 0.03", "1.23", "1.50", "1.00"]
        assert rows["GPLDLA", "5"] == ["6.71 ± 0.14", "–", "–", "–"]
        assert rows["MetaQDA (MAP)", "5"] == ["22.49 ± 0.67", "5.68", "–", "4.60"]
        assert {"A GPU, torch 9, commit cuda01", "Two cores, torch 9, commit cpu01"} <= {
            re.sub(r".* on (.*)\.", r"\1", n) for n in shown.notes
        }

    def test_what_is_to_be_said_beside_the_times_is_said(self, folder):
        file = folder / "bench_heads_cuda.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "note": "Of another day."}))
        (shown,) = tables("running-time", folder)
        assert shown.notes.count("Of another day.") == 1

    def test_on_a_cpu_are_ratios_only(self, folder):
        (folder / "bench_heads_cuda.json").unlink()
        printed = text(tables("running-time", folder))
        assert "1.23" not in printed
        assert "1234" not in printed


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

    @pytest.mark.parametrize("notes", [{"note": "One."}, {"notes": "One."}, {"notes": [1]}])
    def test_notes_are_a_list_of_sentences(self, tmp_path, notes):
        write_cell(tmp_path, accuracy=61.2, **notes)
        with pytest.raises(
            UserError, match=r"one\.json must have its notes as a list of sentences under the key 'notes'"
        ):
            tables("cub", tmp_path)

    def test_a_missing_folder_is_named(self, tmp_path):
        with pytest.raises(UserError, match=re.escape(f"There is no folder {tmp_path / 'none'}")):
            tables("cub", tmp_path / "none")


class TestPage:
    @pytest.fixture
    def folder(self, tmp_path):
        folder = tmp_path / "measured"
        folder.mkdir()
        origin = {"command": "gpldla train cub", "commit": "abc1234", "device": "A GPU, torch 9"}
        seeds = {
            "training_seeds": [0, 1],
            "accuracies": [65.5, 66.5],
            "spread": 0.71,
            "seconds": [3600.0, 1800.0],
        }
        bins = {"reliability": BINS, "reliability_val_temperature": BINS}
        write_cell(folder, "cub-1", **FULL, **origin, **seeds, **bins)
        write_cell(folder, "cub-5", **AS_THE_PAPER, shots=5, reliability=BINS)
        write_cell(folder, "cub-protonet", **FULL, method="protonet", **bins)
        return folder

    def test_has_every_table(self, tmp_path, folder):
        page = page_text(tmp_path / "page.md", folder)
        for table in tables(None, folder):
            assert markdown(table) in page

    def test_has_the_method_of_the_paper_at_a_glance(self, tmp_path, folder):
        page = page_text(tmp_path / "page.md", folder)
        assert "| cub, conv4 | 1 | 63.40 ± 0.14 | – | **66.00 ± 0.71** |" in page
        assert "| cub, conv4 | 5 | **78.86 ± 0.35** | 63.30 ± 0.40 | – |" in page
        assert "| tieredimagenet, conv4 | 1 | 54.75 ± 0.24 | no images | no images |" in page

    @pytest.mark.parametrize(
        ("own", "row"),
        [
            (66.0, "| 63.40 ± 0.14 | 60.00 ± 0.40 | **66.00 ± 0.40** |"),
            (63.5, "| 63.40 ± 0.14 | 60.00 ± 0.40 | 63.50 ± 0.40 |"),
            (61.0, "| **63.40 ± 0.14** | 60.00 ± 0.40 | 61.00 ± 0.40 |"),
        ],
    )
    def test_the_papers_number_is_bold_if_it_is_better_than_all_of_ours(self, tmp_path, own, row):
        write_cell(tmp_path, "paper", **AS_THE_PAPER | {"accuracy": 60.0})
        write_cell(tmp_path, "own", **FULL | {"accuracy": own})
        assert f"| cub, conv4 | 1 {row}" in page_text(tmp_path / "page.md", tmp_path)

    def test_says_where_each_number_comes_from(self, tmp_path, folder):
        page = page_text(tmp_path / "page.md", folder)
        row = "| `cub-1` | 65.50, 66.50 | 0.40 | 0.71 | 0, 1 | 1.00, 0.50 | abc1234 | A GPU, torch 9 |"
        assert row in page
        assert "- `cub-1`: `gpldla train cub`" in page

    def test_has_plots_of_gpldla_beside_it(self, tmp_path, folder):
        page = tmp_path / "docs" / "results.md"
        written = write_page(page, folder)
        assert written == [page, page.parent / "images" / "results" / "cub-conv4.png"]
        assert page.read_text("utf-8") == page_text(page, folder)
        assert "](images/results/cub-conv4.png)" in page.read_text("utf-8")
        with Image.open(written[1]) as picture:
            assert picture.format == "PNG"
            assert min(picture.size) > 500

    def test_the_plots_show_what_was_measured(self, tmp_path, figures):
        write_cell(tmp_path, "cub-1", **FULL, reliability=BINS)
        confidence_plots([("1-shot", *read_cells(tmp_path))])
        (figure,) = figures
        bars, shares = (figure.subfigs[0].axes[place] for place in (0, 3))
        lines, left = (figure.subfigs[0].axes[place] for place in (2, 5))
        # 200 of 310 are in the last bin; ten in the first are too few to count
        assert [bar.get_height() for bar in bars.patches] == pytest.approx([0.6, 0.9, 0.5])
        assert [bar.get_height() for bar in shares.patches] == pytest.approx(
            [0, 100 / 31, 1000 / 31, 2000 / 31]
        )
        assert bars.texts[0].get_text() == "ECE 3.1 %"
        x, accuracy = lines.lines[0].get_data()
        assert list(x) == [0, 0.25, 0.5, 0.75]
        assert list(accuracy) == pytest.approx([245 / 310, 245 / 310, 240 / 300, 180 / 200])
        assert list(left.lines[0].get_ydata()) == pytest.approx([100, 100, 3000 / 31, 2000 / 31])

    def test_says_what_is_not_measured_yet(self, tmp_path):
        empty = tmp_path / "empty"
        empty.mkdir()
        page = page_text(tmp_path / "page.md", empty)
        assert page.count("Not measured yet.") == 2, "plots and origins"
        assert "![" not in page


class TestOurs:
    def test_the_results_are_those_of_the_checkout(self):
        assert results_folder() == RESULTS[-1]

    def test_every_measured_cell_has_a_place(self):
        settings = {
            (*setting, shots)
            for table in paper_tables().values()
            if table.name != "running-time"
            for setting in table.settings
            for shots in table.shots(setting)
        }
        settings |= {
            (STAND_INS[dataset], STAND_IN_NETWORKS.get(network, network), shots)
            for dataset, network, shots in settings
            if dataset in STAND_INS
        }
        for cell in read_cells(results_folder()):
            assert (*cell.setting, cell.shots) in settings
            assert cell.method in methods()

    def test_the_page_is_what_the_command_writes(self):
        page = ROOT / "docs" / "results.md"
        written = page_text(page, results_folder())
        assert page.read_text("utf-8") == written, "run `gpldla tables --markdown docs/results.md`"
        named = set(re.findall(r"\(images/results/(.+?)\)", written))
        assert {path.name for path in (page.parent / "images" / "results").glob("*")} == named


class TestCommand:
    def test_prints_the_papers_numbers_and_runs_nothing(self, run, monkeypatch):
        def work(*args, **options):
            raise AssertionError("something was run")

        for name in ("training.run.train", "bench.heads.seconds_per_call", "data.load_protocol"):
            monkeypatch.setattr(f"gpldla.{name}", work)
        for name in ([], ["methods"]):
            code, out, err = run("tables", *name)
            assert (code, err) == (0, "")
            assert "GPLDLA" in out
            assert "63.40" in out
            assert ("Unseen scripts" in out) == (name == ["methods"])

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

    def test_json_of_one_table_has_its_cells_and_stand_ins_alone(self, run, tmp_path):
        for number, dataset in enumerate(("cub", "miniimagenet", "tinyimagenet-mini", "tinyimagenet-cub")):
            write_cell(tmp_path, dataset, dataset=dataset, accuracy=50.0 + number)
        code, out, _ = run("tables", "miniimagenet", "--json", "--results", tmp_path)
        assert code == 0
        printed = json.loads(out)
        assert list(printed["paper"]) == ["miniimagenet"]
        assert [cell["dataset"] for cell in printed["ours"]] == ["miniimagenet", "tinyimagenet-mini"]

    def test_json_of_times_and_of_all_methods(self, run, tmp_path):
        times, compared = json.loads(run("tables", "running-time", "--json")[1]), {"rows": [1], "device": "d"}
        assert times["ours"] == []
        assert {row["method"] for row in times["times"]["cuda"]["rows"]} >= {"GPLDLA"}
        (tmp_path / "compare.json").write_text(json.dumps(compared | {"command": "c"}))
        printed = json.loads(run("tables", METHODS, "--json", "--results", tmp_path)[1])
        assert (printed["times"], printed["comparison"]["rows"]) == ({}, [1])

    def test_an_unknown_table_is_one_line(self, refused):
        assert refused("tables", "cubs") == "gpldla: There is no table 'cubs'; did you mean 'cub'?"

    @pytest.mark.parametrize("options", [[], ["--json"]])
    def test_a_missing_folder_is_one_line(self, refused, tmp_path, options):
        assert str(tmp_path / "none") in refused("tables", "--results", tmp_path / "none", *options)

    def test_writes_the_page(self, run, tmp_path):
        (tmp_path / "cells").mkdir()
        page = tmp_path / "page.md"
        code, out, err = run("tables", "--markdown", page, "--results", tmp_path)
        assert (code, out, err) == (0, "", f"Wrote {page} and 0 pictures.\n")
        assert page.read_text("utf-8").startswith("# Results\n")

    def test_a_page_must_be_markdown(self, refused, tmp_path):
        assert "must end in .md" in refused("tables", "--markdown", tmp_path / "cub", "--results", tmp_path)
        assert not (tmp_path / "cub").exists()

    @pytest.mark.parametrize("more", [["cub"], ["--json"]])
    def test_a_page_is_of_all_tables(self, refused, tmp_path, more):
        assert "leave out" in refused("tables", *more, "--markdown", tmp_path / "page.md")
        assert not (tmp_path / "page.md").exists()
