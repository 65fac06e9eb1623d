"""The opening of the page of results says what the cells say."""

import io

import pytest
from PIL import Image

from gpldla.reports.paper_tables import read_cells
from gpldla.reports.paper_tables.contests import contest_table, contests
from gpldla.reports.paper_tables.front import ECE_PLOT, TIME_PLOT, front_page, front_pictures
from gpldla.utils.files import write_json

FULL = {"recipe": "cub", "interval": 0.3, "seconds": [60.0, 180.0], "ece": 5.0, "ece_val_temperature": 1.0}
FULL |= {"dataset": "cub", "backbone": "conv4", "shots": 1, "nll_val_temperature": 0.9}


@pytest.fixture
def write(tmp_path):
    def write(method, accuracy, **numbers):
        name = f"{method}-{len(list(tmp_path.rglob('*.json')))}"
        cell = {**FULL, "method": method, "accuracy": accuracy, **numbers}
        write_json(tmp_path / "cells" / f"{name}.json", cell)

    return write


def page(folder):
    return "\n".join(front_page(read_cells(folder), folder, "images"))


def test_the_most_accurate_of_the_others_is_the_rival(tmp_path, write):
    write("gpldla", 70.0)
    write("protonet", 60.0, seconds=[30.0])
    write("maml", 65.0, ece=2.0, nll_val_temperature=0.8)
    (contest,) = contests(read_cells(tmp_path))
    assert (contest.best_other.method, contest.lead, contest.outcome) == ("maml", 5.0, "ahead")
    assert [cell.method for cell in contest.better("ece")] == ["maml"]
    (row,) = contest_table([contest]).rows
    texts = [entry.text for entry in row[1]]
    accuracies = ["1", "70.00 ± 0.30", "MAML 65.00 ± 0.30", "+5.0"]
    assert texts == [*accuracies, "5.0, **2.0**", "**1.0**, **1.0**", "0.900, **0.800**", "2.0, 2.0"]
    assert [entry.better for entry in row[1]][1:3] == [True, False]


@pytest.mark.parametrize(
    ("accuracy", "outcome"), [(70.5, "level"), (69.5, "level"), (71.0, "behind"), (69.0, "ahead")]
)
def test_results_whose_margins_overlap_are_level(tmp_path, write, accuracy, outcome):
    write("gpldla", 70.0)
    write("protonet", accuracy)
    assert contests(read_cells(tmp_path))[0].outcome == outcome


def test_short_trainings_and_those_of_the_papers_recipe_do_not_compete(tmp_path, write):
    write("gpldla", 70.0)
    write("protonet", 71.0, recipe="cub-paper")
    short = {"method": "maml", "accuracy": 80.0, "notes": ["Short."]}
    short |= {name: value for name, value in FULL.items() if name != "recipe"}
    write_json(tmp_path / "cells" / "short.json", short)
    assert contests(read_cells(tmp_path)) == []
    assert front_page(read_cells(tmp_path), tmp_path, "images") == []
    assert front_pictures(read_cells(tmp_path)) == {}


def test_what_is_lost_is_said(tmp_path, write):
    write("gpldla", 60.0, ece=12.5)
    write("protonet", 62.0, ece=3.5)
    shown = page(tmp_path)
    assert "the most accurate in 0, level with the best other in 0 and behind in 1." in shown
    assert "**Accuracy, cub, conv4, 1-shot**: ProtoNet is 2.0 points more accurate." in shown
    assert "a lower error in 1 of 1 settings." in shown
    assert "The largest error is 12.5 (cub, conv4, 1-shot; ProtoNet 3.5)" in shown
    assert "by the best of our recipes**: cub, conv4, 1-shot, 60.00 instead of 63.40." in shown
    assert "trained as the paper says**" not in shown


def test_nothing_is_lost_where_nothing_is(tmp_path, write):
    write("gpldla", 70.0)
    write("protonet", 62.0, ece=6.0)
    losses = page(tmp_path).split("and why")[1]
    assert "- **" not in losses
    assert "Nothing" in losses


def test_faster_methods_are_named(tmp_path, write):
    write("gpldla", 70.0)
    write("protonet", 62.0)
    ratios = {"GPLDLA": [1.0], "GPDKT": [0.6, 0.9], "Laplace": [0.9, 1.2]}
    rows = [{"method": name, "ratio": ratio} for name, several in ratios.items() for ratio in several]
    measured = {"rows": rows, "device": "GPU", "command": "gpldla bench heads"}
    write_json(tmp_path / "bench_heads_cuda.json", measured)
    shown = page(tmp_path)
    assert "as a multiple of GPLDLA's: GPDKT 0.6 to 0.9." in shown
    assert "Laplace 0" not in shown


def test_two_plots_with_a_panel_for_each_setting(tmp_path, write):
    for shots in (1, 5):
        write("gpldla", 70.0, shots=shots)
        write("protonet", 62.0, shots=shots, ece=9.0)
    pictures = front_pictures(read_cells(tmp_path))
    assert [*pictures] == [TIME_PLOT, ECE_PLOT]
    assert all(f"images/{name}" in page(tmp_path) for name in pictures)
    sizes = {Image.open(io.BytesIO(picture)).size for picture in pictures.values()}
    for network in ("resnet10", "resnet18"):
        write("gpldla", 70.0, backbone=network)
        write("protonet", 62.0, backbone=network)
    ((width, height),) = sizes
    picture = Image.open(io.BytesIO(pictures[ECE_PLOT])).convert("L")
    unused = picture.crop((4 * width // 5, 0, width, height))  # of a third panel
    assert unused.getextrema()[0] > 250
    more = front_pictures(read_cells(tmp_path))  # four panels, in two lines
    assert {Image.open(io.BytesIO(picture)).size for picture in more.values()} == {(width, 2 * height)}
    assert pictures[TIME_PLOT] != pictures[ECE_PLOT]
