"""Exported graphs decide as the classifier does: probabilities, "none of these", unsure; and they whiten."""

import json

import numpy as np
import pytest

from gpldla import FewShotModel
from gpldla.backbones.base import padded
from gpldla.classifier.abstention import is_unsure
from gpldla.export import Decision, export_adaptable, export_fitted
from gpldla.heads import create_head
from gpldla.utils.errors import UserError
from tests.classifier.test_file import pictures
from tests.test_export import (
    answers_in_float16,
    as_pixels,
    episode,
    facts_of,
    in_torch,
    original_shapes,
    session_of,
)
from tests.token_network import TokenMeans

VOCABULARY = ["[PAD]", "[UNK]", *(chr(code) for code in range(97, 123))]
WORDS = ["hello", "hallo", "yellow", "six", "sixty", "fix"]


def spelling():
    """A network of texts with one token per letter."""
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.models.WordLevel({word: i for i, word in enumerate(VOCABULARY)}, "[UNK]")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    return TokenMeans(tokenizer)


def run(file, **inputs):
    """The outputs of a file by name."""
    session = session_of(file)
    return dict(zip([one.name for one in session.get_outputs()], session.run(None, inputs)))


def agrees(given, classifier, items, max_error, prevalence, tolerance=1e-4):
    proba = classifier.predict_proba(items)
    none = classifier.none_of_these(items, prevalence=prevalence)
    assert np.abs(given["probabilities"] - proba).max() <= tolerance
    assert np.abs(given["none_of_these"] - none).max() <= tolerance
    unsure = is_unsure(proba, none, max_error)
    assert given["unsure"].dtype == bool
    assert given["unsure"].tolist() == unsure.tolist()
    assert 0 < unsure.sum() < len(unsure)  # there is something to get wrong


class TestPictures:
    @pytest.fixture
    def classifier(self):
        labels = list("aaaabbbbcccc")
        return FewShotModel("pixels", "gpldla-auto").adapt(
            pictures((4, 4, 4)), labels, unlabelled=pictures((9, 9, 9), seed=3)
        )

    @pytest.fixture
    def items(self):
        strange = np.random.default_rng(0).integers(0, 256, (4, 32, 32), np.uint8)
        return [*pictures((3, 3, 3), seed=1), *strange]

    def test_decide_as_the_classifier_does(self, tmp_path, classifier, items):
        file = tmp_path / "c.onnx"
        export_fitted(classifier, file, max_error=0.5, prevalence=0.02)
        given = run(file, images=as_pixels(items, classifier.model.preprocessing))
        assert list(given) == ["probabilities", "none_of_these", "unsure"]
        agrees(given, classifier, items, 0.5, 0.02)
        facts = facts_of(file)
        assert (facts["max_error"], facts["prevalence"]) == (0.5, 0.02)
        assert original_shapes(file)["unsure"] == ["n"]

    def test_features_alone_decide_likewise(self, tmp_path, classifier, items):
        export_fitted(classifier, tmp_path / "c.onnx", features=True, max_error=0.5)
        rows = classifier.model.embed(items).numpy()
        agrees(run(tmp_path / "c.onnx", features=rows), classifier, items, 0.5, 0.1)

    def test_a_head_without_none_of_these_has_no_such_output(self, tmp_path):
        classifier = FewShotModel("pixels", "gpldla").adapt(pictures((4, 4)), list("aaaabbbb"))
        export_fitted(classifier, tmp_path / "c.onnx", features=True, max_error=0.2)
        rows = classifier.model.embed(pictures((5, 5), seed=2)).numpy()
        given = run(tmp_path / "c.onnx", features=rows)
        assert list(given) == ["probabilities", "unsure"]
        assert given["unsure"].tolist() == is_unsure(given["probabilities"], None, 0.2).tolist()

    @pytest.mark.parametrize("options", [{"max_error": 1.1}, {"prevalence": 0}])
    def test_what_is_no_share_is_refused(self, options):
        with pytest.raises(UserError, match=f"{min(options)} must lie between 0 and 1"):
            Decision(**options)


def test_texts_have_their_encoder_in_the_graph_and_their_tokenizer_beside_it(tmp_path):
    classifier = FewShotModel(spelling(), "gpldla-auto").adapt(WORDS, ["greeting"] * 3 + ["number"] * 3)
    file = tmp_path / "c.onnx"
    export_fitted(classifier, file, max_error=0.3)
    session = session_of(file)
    rules = session.get_modelmeta().custom_metadata_map["tokenizer"]
    tokenizer = pytest.importorskip("tokenizers").Tokenizer.from_str(rules)
    texts = ["hello", "sixtysix", "a", "mellow", "fox", "zzz"]
    tokens, mask = padded([encoding.ids for encoding in tokenizer.encode_batch(texts)])
    agrees(run(file, tokens=tokens, mask=mask), classifier, texts, 0.3, 0.1)
    assert facts_of(file)["kind"] == "text classifier"
    assert json.loads(rules)["model"]["type"] == "WordLevel"
    assert original_shapes(file)["tokens"] == ["n", "longest"]


@pytest.mark.parametrize("half", [False, pytest.param(True, marks=pytest.mark.long)])
def test_adaptable_graphs_whiten(tmp_path, half):
    head = create_head("gpldla-auto", beta=0.5)
    file = tmp_path / "a.onnx"
    export_adaptable(head, None, file, half=half)
    for shots, d in (([5] * 5, 300), ([1] * 4, 64), ([3, 1, 7], 20), ([20] * 3, 10)):
        support, labels, query = episode(0, shots, 30, d)
        inputs = {"support": support.numpy(), "labels": labels.numpy(), "query": query.numpy()}
        given = answers_in_float16(file, **inputs) if half else run(file, **inputs)["probabilities"]
        expected = in_torch(head, support, labels, query)
        assert np.abs(given - expected).max() <= (5e-3 if half else 1e-4)
        plain = in_torch(create_head("gpldla-auto", beta=0.5, whiten=False), support, labels, query)
        assert np.abs(plain - expected).max() > 0.02
