import json

import numpy as np
import pytest
import torch

from gpldla import FewShotClassifier, ImageEmbedder, TextEmbedder
from gpldla.backbones import create_backbone
from gpldla.classifier.resolve import resolve_model
from gpldla.utils.errors import UserError
from tests.backbones.hub_models import save_sentence_encoder

pytest.importorskip("sentence_transformers")
TEXTS = ["a wren sings", "ein Zaunkönig", "鷦鷯", "z", "the quick brown fox jumps over the lazy dog"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("st") / "encoder"
    save_sentence_encoder(folder)
    return folder


def test_features_are_the_mean_of_the_tokens_states(folder):
    from transformers import BertModel

    bert = BertModel.from_pretrained(folder.parent / "encoder-bert").eval()
    features = TextEmbedder(f"st:{folder}", cache=False).fit_transform(TEXTS)
    for text, row in zip(TEXTS, features):
        letters = [4 + ord(c) - ord("a") if c.isascii() and c.isalpha() else 2 for c in text.lower()]
        tokens = torch.tensor([[1, *letters[:14], 3]])  # at most 16
        with torch.no_grad():
            expected = bert(input_ids=tokens).last_hidden_state.mean(1)[0]
        np.testing.assert_allclose(row, expected.numpy(), atol=1e-5)


def test_a_classifier_finds_its_encoder_again(folder, tmp_path):
    classifier = resolve_model(f"st:{folder}").adapt(TEXTS, [0, 1, 1, 0, 0])
    classifier.save(tmp_path / "c.safetensors")
    loaded = FewShotClassifier.load(tmp_path / "c.safetensors")
    np.testing.assert_allclose(loaded.predict_proba(TEXTS), classifier.predict_proba(TEXTS), atol=1e-5)


def test_another_pooling_of_the_same_weights_is_refused(tmp_path):
    folder, file = tmp_path / "encoder", tmp_path / "c.safetensors"
    save_sentence_encoder(folder)
    resolve_model(f"st:{folder}").adapt(TEXTS, [0, 1, 1, 0, 0]).save(file)
    pooling = folder / "1_Pooling" / "config.json"
    facts = json.loads(pooling.read_text())
    assert facts["pooling_mode"] == "mean"
    pooling.write_text(json.dumps(facts | {"pooling_mode": "cls"}))
    with pytest.raises(UserError, match="another version of st:"):
        FewShotClassifier.load(file)


def test_code_of_a_folder_is_not_run(tmp_path):
    folder = tmp_path / "encoder"
    save_sentence_encoder(folder)
    parts = json.loads((folder / "modules.json").read_text())
    parts[1]["type"] = "evil.Pooling"
    (folder / "modules.json").write_text(json.dumps(parts))
    (folder / "evil.py").write_text("raise SystemExit('run')")
    with pytest.raises(UserError, match=r"code of its own \(evil\.Pooling\), which is not run"):
        create_backbone(f"st:{folder}")


def test_wrong_input(folder, tmp_path):
    for name, expected in {
        "st:all-MiniLM-L12-v2": r"`hf download sentence-transformers/all-MiniLM-L12-v2`",
        f"st:{folder},size=64": "leave out the size",
        f"st:{tmp_path}": "no modules.json",
    }.items():
        with pytest.raises(UserError, match=expected):
            create_backbone(name)
    with pytest.raises(UserError, match="reads texts; use TextEmbedder"):
        ImageEmbedder(f"st:{folder}").fit([np.zeros((4, 4))])


def test_names_are_texts_like_all_others(folder):
    backbone = create_backbone(f"st:{folder}")
    assert torch.allclose(backbone.text_features(TEXTS), backbone.features(TEXTS))
