import base64
import io
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from jinja2 import UndefinedError
from PIL import Image
from rich.console import Console

from gpldla.classifier.calibration import reliability
from gpldla.reports.home_and_away import Judged
from gpldla.reports.html import DrawnEpisode, DrawnQuery, picture_uri, write_demo_report
from gpldla.reports.plots import prior_plot, reliability_plot, training_curve, training_plot
from gpldla.reports.terminal import evaluation_table, inventory_tables

METRICS = [
    {"episode": 20, "loss": 2.0, "accuracy": 30.0, "beta": 1.0, "beta_b": 1.0},
    {"episode": 40, "loss": 1.0, "accuracy": 60.0, "beta": 1.2, "beta_b": 0.9},
    {"episode": 40, "validation_accuracy": 50.0},
    {"episode": 60, "loss": 0.5, "accuracy": 70.0, "beta": 1.4, "beta_b": 0.8},
]
NASTY = "<b>bold</b> & \"quoted\" <script>alert('x')</script>"


def bins(n=200):
    generator = torch.Generator().manual_seed(0)
    log_prob = torch.randn(n, 5, generator=generator).log_softmax(-1)
    return reliability(log_prob, torch.randint(5, (n,), generator=generator))


def printed(table):
    console = Console(file=io.StringIO(), width=200)
    console.print(table)
    return console.file.getvalue()


class TestTables:
    @pytest.fixture
    def numbers(self):
        numbers = {"dataset": "glyphs", "ways": 5, "shots": 1, "repeats": 5, "episodes": 600}
        numbers |= {"temperature_model": 1.75, "temperature_val": 1.25, "temperature_paper": 1.5}
        numbers["temperature_task"] = 2.0
        numbers["temperature_val_is_fitted"] = True
        suffixes = ("", "_model_temperature", "_classifier", "_val_temperature", "_paper_temperature")
        for place, suffix in enumerate(suffixes):
            numbers |= {"accuracy" + suffix: 91.234, "interval" + suffix: 0.456, "nll" + suffix: 0.1 + place}
            numbers |= {"ece" + suffix: 2.5 + place, "ece_equal_mass" + suffix: 7.5 + place}
        return numbers

    def test_an_evaluation_says_where_no_validation_classes_were(self, numbers):
        assert "from validation classes" in printed(evaluation_table(numbers))
        text = printed(evaluation_table(numbers | {"temperature_val_is_fitted": False}))
        assert "from validation classes" not in text
        assert "too few validation classes here" in text

    def test_an_evaluation_has_a_row_a_temperature(self, numbers):
        text = printed(evaluation_table(numbers))
        assert "glyphs, 5-way 1-shot" in text
        assert "5 × 600 episodes" in text
        assert text.count("91.23 ± 0.46") == 5
        rows = [
            ("1.00", "0.100", "2.50"),
            ("1.75", "1.100", "3.50"),
            ("2.00", "2.100", "4.50"),
            ("1.25", "3.100", "5.50"),
            ("1.50", "4.100"),
        ]
        for cells in rows:
            assert any(all(cell in line for cell in cells) for line in text.splitlines())


class TestInventory:
    @pytest.fixture
    def stock(self):
        nothing = {"found": False, "embedded": False, "place": None, "classes": 0, "images": 0}
        nothing |= {"complete": False, "packed": []}
        there = {**nothing, "found": True, "classes": 1234, "images": 56_789}

        def part(name, classes, found):
            return {"set": name, "classes": classes, "classes_found": found, "images": 10 * found}

        return {
            "data_root": "/data",
            "sets": {
                "digits": {**there, "embedded": True, "complete": True, "packed": ["/cache/digits-1"]},
                "birds": {**there, "place": "/data/Birds/v2"},
                "cars": {**there, "place": "/elsewhere/cars", "complete": True},
                "gone": {**there, "complete": True, "packed": ["/cache/gone-1"]},
                "none": nothing,
                "empty": {**nothing, "place": "/data/empty"},
            },
            "protocols": {
                "birds": {"base": part("birds", 1000, 999), "novel": part("birds", 50, 50)},
                "cars-none": {"base": part("cars", 77, 77), "novel": part("none", 66, 0)},
            },
        }

    def rows(self, table):
        """Return the cells of each row by its first one."""
        lines = [line.strip("│ ").split("│") for line in printed(table).splitlines() if "│" in line]
        return {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in lines}

    def test_a_data_set_has_a_row_with_its_place_and_state(self, stock):
        rows = self.rows(inventory_tables(stock)[0])
        assert rows == {
            "digits": ["embedded", "1,234", "56,789", "complete, packed"],
            "birds": ["Birds/v2", "1,234", "56,789", "not complete"],
            "cars": ["/elsewhere/cars", "1,234", "56,789", "complete"],
            "gone": ["packed copy only", "1,234", "56,789", "complete, packed"],
            "none": ["", "", "", "missing"],
            "empty": ["empty", "", "", "no images"],
        }

    def test_a_protocol_has_a_row_with_its_classes_and_sources(self, stock):
        rows = self.rows(inventory_tables(stock)[1])
        assert rows == {
            "birds": ["999 of 1,000", "", "50", "birds"],
            "cars-none": ["77", "", "66", "cars → none"],
        }

    def test_the_data_root_is_named(self, stock):
        assert "Data root /data" in printed(inventory_tables(stock)[0])


class TestPlots:
    @pytest.mark.parametrize(
        "plot",
        [
            lambda: training_plot(METRICS),
            lambda: prior_plot(METRICS),
            lambda: reliability_plot([("one", "as predicted", bins()), ("two", "T = 2", bins(1000))]),
        ],
        ids=["training", "prior", "reliability"],
    )
    def test_are_the_same_bytes_every_time(self, plot):
        assert plot() == plot()

    def test_are_svg_with_a_description(self):
        svg = training_plot(METRICS)
        assert svg.startswith('<svg role="img" aria-label="Loss and accuracy during training"')
        assert svg.rstrip().endswith("</svg>")

    @pytest.mark.parametrize("plot", [training_plot, prior_plot])
    @pytest.mark.parametrize(
        "metrics",
        [[], METRICS[:2], METRICS[2:3], [{"episode": 20, "loss": 2.0}]],
        ids=["nothing", "no validation", "validation only", "loss only"],
    )
    def test_series_may_be_missing(self, plot, metrics):
        assert plot(metrics).startswith("<svg")

    def test_what_is_plotted_is_seen(self):
        assert training_plot(METRICS) != training_plot(METRICS[:2])
        assert prior_plot(METRICS) != prior_plot(METRICS[:2])
        assert reliability_plot([("a", "b", bins(100))]) != reliability_plot([("a", "b", bins(1000))])

    def test_a_star_marks_the_weights_that_were_kept(self, figures):
        validated = [
            {"episode": episode, "validation_accuracy": accuracy}
            for episode, accuracy in ((20, 40.0), (40, 62.5), (60, 61.0))
        ]
        training_curve([*METRICS[:2], *validated], "a model", training="base", validation="validation")
        (figure,) = figures
        (star,) = [line for line in figure.axes[1].lines if line.get_marker() == "*"]
        assert [list(data) for data in star.get_data()] == [[40], [62.5]]
        assert star.get_label() == "kept weights: 62.5 %"

    def test_bins_may_all_be_too_small_to_show(self):
        assert reliability_plot([("few", "as predicted", bins(3))]).startswith("<svg")


class TestPicture:
    def test_is_a_png_of_the_image(self):
        image = np.arange(64, dtype=np.uint8).reshape(1, 8, 8)
        kind, data = picture_uri(image).split(",")
        assert kind == "data:image/png;base64"
        with Image.open(io.BytesIO(base64.b64decode(data))) as picture:
            np.testing.assert_array_equal(np.asarray(picture), image[0])


class Page(HTMLParser):
    """Collects tags, the addresses they point to, and what of the text a reader sees."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.addresses, self.text = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        names = ("src", "href", "xlink:href", "action", "data", "srcset")
        self.addresses += [value for name, value in attributes if name in names]

    def handle_data(self, data):
        self.text.append(data)


def judged(place, accuracy, confidence):
    return Judged(place, "as predicted", accuracy, 0.345, bins(), confidence - accuracy)


@pytest.fixture(scope="module")
def facts():
    image = np.full((1, 32, 32), 200, np.uint8)
    row = {
        "label": "unseen scripts",
        "accuracy": 91.2,
        "interval": 0.4,
        "pixels": 55.6,
        "untrained": 36.6,
    }
    row |= {"ece": 5.5, "ece_classifier": 1.5, "nll": 0.5, "nll_classifier": 0.25}
    queries = [
        DrawnQuery(image, 0, np.array([0.7, 0.2, 0.1])),
        DrawnQuery(image, 0, np.array([0.1, 0.9, 0.0])),
    ]
    return {
        "training_seconds": 12,
        "total_seconds": 34,
        "base_scripts": "Latin and Greek",
        "validation_scripts": "Armenian",
        "cards": [{"value": "91 %", "text": "right on unseen scripts"}],
        "n_queries": "1,000",
        "results": [row],
        "home": "unseen scripts",
        "away": "digits",
        "stages": [[judged("at home", 91.2, 93.3), judged("away", 55.5, 77.7)]],
        "reliability_plots": [reliability_plot([("unseen scripts", "as predicted", bins())])],
        "verdict": ["It is good.", "It is bad."],
        "episodes": [DrawnEpisode("A task", ["Lao a", NASTY, "Lao c"], [[image]] * 3, queries)],
        "n_training_episodes": "800",
        "ways": 20,
        "shots": 1,
        "training_plot": training_plot(METRICS),
        "prior_plot": prior_plot(METRICS),
        "command": "gpldla demo -o demo",
        "version": "0.0",
        "seed": 0,
        "model_folder": "demo/model",
        "results_file": "demo/results.json",
    }


@pytest.fixture(scope="module")
def page(facts, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_demo_report(path, facts)
    return path.read_text("utf-8")


class TestDemoReport:
    def test_needs_nothing_from_elsewhere(self, page):
        addresses = Page(page).addresses
        assert addresses
        for address in addresses:
            assert address.startswith(("data:", "#")), address
        assert "url(http" not in page
        assert "@import" not in page
        assert not {"script", "link", "iframe", "object", "embed", "base"} & set(Page(page).tags)

    def test_names_of_classes_are_text_and_not_markup(self, page):
        assert "<b>bold</b>" not in page
        assert NASTY in "".join(Page(page).text)

    def test_shows_the_numbers(self, page):
        for text in (
            "91.2 ± 0.4",
            "55.6",
            "36.6",
            "5.5",
            "1.5",
            "0.250",
            "91 %",
            "1,000",
            "Armenian",
            "93.3",
            "77.7",
        ):
            assert text in page

    def test_shows_every_picture_and_every_probability(self, page):
        assert page.count("data:image/png;base64,") == 3 + 2
        for percent in ("70 %", "20 %", "10 %", "90 %", "0 %"):
            assert percent in page

    def test_tells_right_answers_from_wrong_ones(self, page):
        right, wrong = (re.findall(rf'class="bar[^"]*\b{word}\b[^"]*"', page) for word in ("right", "wrong"))
        assert (len(right), len(wrong)) == (1, 1)

    def test_has_all_plots_and_no_markup_shown_as_text(self, page):
        assert page.count("<svg") == 3
        assert "&lt;svg" not in page

    def test_every_tag_that_opens_closes(self, page):
        for tag in ("div", "span", "table", "p", "main", "body", "html"):
            assert len(re.findall(rf"<{tag}[ >]", page)) == page.count(f"</{tag}>"), tag

    def test_nothing_is_left_of_the_template(self, page):
        assert "{{" not in page
        assert "{%" not in page

    def test_a_missing_fact_is_an_error_and_not_a_gap(self, facts, tmp_path):
        for name in facts:
            some = {key: value for key, value in facts.items() if key != name}
            with pytest.raises(UndefinedError, match=name):
                write_demo_report(tmp_path / "report.html", some)
        assert list(tmp_path.iterdir()) == []

    def test_an_episode_may_be_missing(self, facts, tmp_path):
        write_demo_report(tmp_path / "report.html", {**facts, "episodes": []})
        assert (tmp_path / "report.html").exists()
