"""The page of an exported classifier, in a real browser: it answers as Python does, and fetches nothing."""

import json

import numpy as np
import pytest
from PIL import Image

from gpldla import FewShotModel
from gpldla.classifier.abstention import is_unsure
from gpldla.data.pictures import picture_pixels
from gpldla.data.preprocessing import Preprocessing
from gpldla.export import browser_page, export_page
from gpldla.utils.errors import UserError
from tests.classifier.test_file import pictures
from tests.server.browser import browsing
from tests.token_network import MOST, TokenMeans

PAGE = browser_page.PAGE
TEXTS = [
    "Where is my parcel?",
    "  Tabs\tand\nlines,  many   blanks ",
    "Ünïcödé ÀÉÎ straße İstanbul ΑΣ Ǆ",
    "中文 and kana かな, 한국어",
    "punctuation!?¿«»—…“”’ a.b.c x_y 5$ £6 ^~`|",
    "control \x01\x02 zero​width ‍joiner ﷽ soft­hyphen",
    "emoji 👩‍👩‍👧 🇩🇪 e\u0301 n\u0303",
    "unknownletters qqqq " + "x" * 120,
    "word " * 80,
    "[CLS] [SEP] [MASK]",
    "",
]


@pytest.fixture(scope="module")
def browser():
    with browsing() as browser:
        yield browser


@pytest.fixture
def tab(browser):
    tab = browser.new_page()
    tab.set_default_timeout(60_000)
    tab.errors, tab.fetched = [], []
    tab.on("pageerror", lambda error: tab.errors.append(str(error)))
    tab.on("request", lambda request: tab.fetched.append(request.url))
    yield tab
    tab.close()


def word_pieces():
    """A tokenizer of BERT's kind with a small vocabulary."""
    tokenizers = pytest.importorskip("tokenizers")
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "where", "my", "par", "##cel", "un", "##known"]
    letters = "abcdefghijklmnoprstuvwyz0123456789?!.,¿«»—…“”’_$£^~`|-[]中文σς"
    pieces += [*letters, *(f"##{letter}" for letter in letters)]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]"))
    made.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    ends = [(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")]
    made.post_processor = tokenizers.processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=ends)
    made.enable_truncation(MOST)
    return made


def add_script(tab, name):
    tab.goto("about:blank")
    tab.add_script_tag(content=(PAGE / name).read_text("utf-8"))


class TestScripts:
    def test_tokens_are_those_of_the_library(self, tab):
        rules = word_pieces()
        add_script(tab, "tokens.js")
        read = "([rules, texts]) => texts.map(makeTokenizer(JSON.parse(rules)))"
        expected = [encoding.ids for encoding in rules.encode_batch(TEXTS)]
        assert tab.evaluate(read, [rules.to_str(), TEXTS]) == expected
        assert max(map(len, expected)) == MOST

    @pytest.mark.parametrize("reading", [1, 2])
    @pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
    def test_pixels_are_those_of_pillow(self, tab, reading, interpolation):
        add_script(tab, "pixels.js")
        rng = np.random.default_rng(0)
        for height, width, mode, keep_aspect in (
            (60, 41, "RGB", False),
            (50, 40, "RGB", False),
            (24, 24, "RGB", False),
            (10, 37, "L", False),
            (301, 195, "RGB", True),
            (97, 310, "L", True),
            (200, 260, "RGBA", False),
        ):
            channels = 1 if mode == "L" else 3
            how = Preprocessing(
                size=20,
                channels=channels,
                mean=(0.5,) * channels,
                std=(0.5,) * channels,
                before_crop=24,
                keep_aspect=keep_aspect,
                interpolation=interpolation,
                reading=reading,
            )
            colours = rng.integers(0, 256, (height, width, 4), np.uint8)
            if mode != "RGBA":
                colours[..., 3] = 255
            facts = {**how.as_json(), "resized": 24, "mode": "L" if mode == "L" else "RGB"}
            given = tab.evaluate(
                "([rgba, width, height, facts]) => [...squarePixels(rgba, width, height, facts)]",
                [colours.ravel().tolist(), width, height, facts],
            )
            expected = picture_pixels(Image.fromarray(colours), how)
            difference = np.abs(np.array(given).reshape(expected.shape) - expected.astype(int))
            assert difference.max() <= 2, (height, width, mode)  # rounded in another order
            assert difference.mean() < 0.3


@pytest.fixture
def runtime():
    if not (browser_page.RUNTIME / "VERSION").is_file():
        pytest.skip("needs `make browser-runtime`")


def opened(tab, file):
    tab.goto(file.as_uri())
    tab.locator("#state", has_text="Ready.").wait_for()


def answers(tab, count):
    """What the page says of each item, in the order in which they were given."""
    cards = tab.locator("article[data-answer], article[data-problem]")
    cards.nth(count - 1).wait_for()
    return [json.loads(card.get_attribute("data-answer") or "null") for card in reversed(cards.all())]


def check_answers(given, classifier, items, max_error):
    proba = classifier.predict_proba(items)
    none = classifier.none_of_these(items, prevalence=0.1)
    assert np.abs(np.array([one["probabilities"] for one in given]) - proba).max() < 0.02
    assert np.abs(np.array([one["noneOfThese"] for one in given]) - none).max() < 0.02
    assert [one["unsure"] for one in given] == is_unsure(proba, none, max_error).tolist()


@pytest.mark.long
@pytest.mark.usefixtures("runtime")
class TestPage:
    def test_pictures_are_answered_as_in_python_and_nothing_is_fetched(self, tab, tmp_path):
        names = ["<b>cat</b>", "dog", "owl"]
        classifier = FewShotModel("pixels", "gpldla-auto").adapt(
            pictures((4, 4, 4)), [name for name in names for _ in range(4)]
        )
        file = tmp_path / "pets.html"
        export_page(classifier, file, max_error=0.4)
        rng = np.random.default_rng(0)
        shown = [
            *map(Image.fromarray, pictures((1, 1, 1), seed=1)),  # of the network's size: answered exactly
            Image.fromarray(rng.integers(0, 256, (60, 41, 3), np.uint8)),
        ]
        sideways = Image.Exif()
        sideways[0x0112] = 6
        paths = [tmp_path / f"{number}.png" for number in range(len(shown))]
        for picture, path in zip(shown, paths):
            picture.save(path, exif=sideways if path.stem == "0" else Image.Exif())
        damaged = tmp_path / "damaged.png"
        damaged.write_bytes(b"no picture")
        opened(tab, file)
        tab.locator("#file").set_input_files([*paths, damaged])
        given = answers(tab, 5)
        check_answers(given[:4], classifier, paths, 0.4)
        assert given[4] is None
        assert tab.get_by_text("damaged.png cannot be read as a picture.").count() == 1
        assert tab.locator("h2").count() == 4
        bars = tab.locator("article").last  # that of the first picture
        share = max(given[0]["probabilities"])
        track, fill = (bars.locator(part).first.bounding_box()["width"] for part in (".track", ".fill"))
        assert fill / track == pytest.approx(share, abs=0.01)
        assert tab.get_by_text("<b>cat</b>").first.is_visible()
        assert tab.errors == []
        assert all(url.startswith(("file://", "blob:")) for url in tab.fetched)

    def test_texts_are_answered_as_in_python(self, tab, tmp_path):
        words = ["hello", "hallo", "yellow", "6 7", "66", "7 6"]
        classifier = FewShotModel(TokenMeans(word_pieces()), "gpldla-auto").adapt(
            words, ["greeting"] * 3 + ["number"] * 3
        )
        file = tmp_path / "topics.html"
        export_page(classifier, file)
        opened(tab, file)
        texts = ["hallo you", "6", "中文 ÀÉÎ", "where is my parcel?"]
        tab.locator("#text").fill("\n".join(texts))
        tab.get_by_role("button", name="Classify").click()
        check_answers(answers(tab, 4), classifier, texts, 0.25)
        assert tab.errors == []


class TestRefuses:
    @pytest.fixture
    def classifier(self):
        return FewShotModel("pixels", "gpldla-auto").adapt(pictures((2, 2)), list("aabb"))

    def test_an_installation_without_the_runtime(self, tmp_path, monkeypatch, classifier):
        monkeypatch.setattr(browser_page, "RUNTIME", tmp_path / "none")
        with pytest.raises(UserError, match="make browser-runtime"):
            export_page(classifier, tmp_path / "page.html")
        assert not (tmp_path / "page.html").exists()

    def test_a_tokenizer_of_another_kind(self):
        rules = json.loads(word_pieces().to_str())
        assert browser_page._is_readable(rules)
        assert browser_page._is_readable(None)
        for part in ("normalizer", "pre_tokenizer"):
            assert not browser_page._is_readable({**rules, part: None})
        assert not browser_page._is_readable({**rules, "model": {"type": "Unigram"}})
