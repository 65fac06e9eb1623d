import base64
import io
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from gpldla.classifier.answer import answer
from gpldla.classifier.answers import Measurement, summarise
from gpldla.classifier.model import FewShotModel
from gpldla.reports.answers_page import AnsweredItems, write_answers_page
from gpldla.reports.fit_page import MATRIX_CLASSES, FittedClassifier, write_fit_page

NASTY = "<b>bold</b> & \"quoted\" <script>alert('x')</script>"
SIDE = 32


def drawn(folder, classes, count, *, seed=0):
    """Files of noise around one picture per class, which hold an EXIF orientation and a place."""
    rng, noise = np.random.default_rng(7), np.random.default_rng(seed)
    wholes = [rng.integers(0, 256, (SIDE, SIDE, 3)) for _ in range(classes)]
    exif = Image.Exif()
    exif[0x010E] = "a secret place"
    files = []
    for c, whole in enumerate(wholes):
        for k in range(count):
            file = folder / f"{seed}-{c}-{k}.png"
            pixels = np.clip(whole + noise.integers(-70, 71, whole.shape), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(file, exif=exif)
            files.append(file)
    return files


class Page(HTMLParser):
    """The tags and texts of a page."""

    def __init__(self, path):
        super().__init__()
        self.tags, self.links, self.open = [], [], []
        self.source = path.read_text("utf-8")
        self.feed(self.source)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href") and value]
        if tag not in ("meta", "img", "br", "use", "path"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        if tag in self.open:
            while self.open.pop() != tag:
                pass

    @property
    def text(self):
        return " ".join(
            re.sub(r"<style>.*?</style>|<svg.*?</svg>|<[^>]+>", " ", self.source, flags=re.S).split()
        )

    @property
    def pictures(self):
        return [link for link in self.links if link.startswith("data:image/")]


def fitted(folder, labels=None, *, classes=3, count=5, **more):
    files = drawn(folder, classes, count)
    labels = labels or [f"class {c}" for c in range(classes) for _ in range(count)]
    classifier = FewShotModel("pixels", "gpldla-auto").adapt(files, labels)
    summary = summarise(classifier, files)
    return FittedClassifier(classifier, summary, files, folder / "c.safetensors", "photos", **more)


def is_alone(page):
    """Whether a page loads nothing: no links but data and parts of its own drawings."""
    return all(link.startswith(("data:image/", "#")) for link in page.links) and "script" not in page.tags


class TestFitPage:
    def test_a_planted_mistake_is_shown_with_its_picture_and_its_correction(self, tmp_path):
        labels = [f"class {c}" for c in range(3) for _ in range(5)]
        labels[1] = "class 2"
        given = fitted(tmp_path, labels)
        write_fit_page(tmp_path / "page.html", given)
        page = Page(tmp_path / "page.html")
        assert is_alone(page)
        assert "Labels to look at" in page.text
        file = tmp_path / "0-0-1.png"
        assert f"gpldla relabel {tmp_path / 'c.safetensors'} {file} &#39;class 0&#39;" in page.source
        shown = base64.b64decode(page.pictures[0].split(",", 1)[1])
        small = np.asarray(Image.open(io.BytesIO(shown)), float)
        assert file == min(given.items, key=lambda one: np.abs(np.asarray(Image.open(one)) - small).mean())
        assert b"secret" not in shown

    def test_what_it_says_is_what_was_measured(self, tmp_path):
        test = Measurement(7, 57.1, 0.9, 2)
        given = fitted(tmp_path, tests={"test": test}, remarks=["It was a fine day."])
        write_fit_page(tmp_path / "page.html", given)
        page = Page(tmp_path / "page.html")
        summary = given.summary
        assert f"{summary.accuracy * summary.tested / 100:.0f} of {summary.tested}" in page.text
        assert f"{100 * summary.expected.accuracy:.0f} % of new pictures" in page.text
        assert "57 % right on the 7 pictures of test" in page.text
        assert "2 more are of other classes" in page.text
        assert "It was a fine day." in page.text
        assert page.open == []

    def test_names_are_text_and_not_tags(self, tmp_path):
        given = fitted(tmp_path, [NASTY] * 5 + ["b"] * 5 + ["c"] * 5)
        write_fit_page(tmp_path / "page.html", given)
        page = Page(tmp_path / "page.html")
        assert is_alone(page)
        assert "b" not in page.tags[page.tags.index("table") :]
        assert "&lt;script&gt;alert" in page.source

    def test_single_examples_have_a_page_that_says_what_is_unknown(self, tmp_path):
        write_fit_page(tmp_path / "page.html", fitted(tmp_path, count=1))
        page = Page(tmp_path / "page.html")
        assert "how often it will be right is unknown" in page.text
        assert "What is taken for what" not in page.text
        assert "Second examples of the 3 classes" in page.text

    def test_a_matrix_that_could_not_be_read_becomes_a_list(self, tmp_path):
        many = MATRIX_CLASSES + 1
        labels = [f"class {c}" for c in range(many) for _ in range(2)]
        labels[0], labels[2] = labels[2], labels[0]
        write_fit_page(tmp_path / "page.html", fitted(tmp_path, labels, classes=many, count=2))
        page = Page(tmp_path / "page.html")
        assert 'class="matrix"' not in page.source
        assert "it is taken for times" in page.text

    def test_pictures_without_labels_are_ranked(self, tmp_path):
        given = fitted(tmp_path)
        more = drawn(tmp_path, 3, 2, seed=1)
        rows = given.classifier.model.embed(more)
        write_fit_page(tmp_path / "page.html", FittedClassifier(**{**vars(given), "pool": (more, rows)}))
        page = Page(tmp_path / "page.html")
        first = more[given.classifier.suggest(more, 1)[0]]
        after = page.text.split("What to label next", 1)[1]
        assert "teaches" in after
        assert min((after.find(file.name), file) for file in more if file.name in after)[1] == first


class TestAnswersPage:
    def page(self, folder, given, files, **options):
        classifier = given.classifier
        features = classifier.model.embed(files)
        none = classifier.novelty_of(features, 0.1)
        answers = answer(
            classifier.probabilities(features), none, files, classifier.classes.tolist(), options["max_error"]
        )
        page = AnsweredItems(classifier, answers, files, features, given.file, prevalence=0.1, **options)
        write_answers_page(folder / "page.html", page)
        return answers, Page(folder / "page.html")

    @pytest.mark.parametrize("max_error", [0.0, 0.25, 1.0])
    def test_the_numbers_are_those_of_the_answers(self, tmp_path, max_error):
        given, files = fitted(tmp_path), drawn(tmp_path, 4, 3, seed=1)  # a fourth class, which is not known
        answers, page = self.page(tmp_path, given, files, max_error=max_error)
        unsure = sum(one.unsure for one in answers)
        assert is_alone(page)
        assert page.open == []
        assert f"{12 - unsure} of 12 got an answer" in page.text
        assert ("The surest of each class" in page.text) == (unsure < 12)
        sure = [one.probability * (1 - one.none_of_these) for one in answers if not one.unsure]
        if sure:
            assert f"{100 * np.mean(sure):.0f} % of the answers should be right" in page.text

    def test_the_least_sure_come_first(self, tmp_path):
        given, files = fitted(tmp_path), drawn(tmp_path, 4, 2, seed=1)
        answers, page = self.page(tmp_path, given, files, max_error=0.25)
        least = min(answers, key=lambda one: one.probability * (1 - one.none_of_these))
        places = {one.item: page.text.find(one.item.rsplit("/", 1)[1]) for one in answers}
        assert min(places, key=places.get) == least.item
