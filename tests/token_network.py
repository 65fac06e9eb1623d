"""A small network of texts with a tokenizer of the library tokenizers."""

import torch
from torch import nn

from gpldla.backbones.base import TokenBackbone
from gpldla.data.preprocessing import TextPreprocessing

MOST = 40  # tokens of a text


class TokenMeans(TokenBackbone):
    """The mean of the vectors of a text's tokens."""

    preprocessing = TextPreprocessing(MOST)
    feature_dim = 16

    def __init__(self, tokenizer):
        super().__init__()
        self.tokenizer = tokenizer
        self.tokenizer.enable_truncation(MOST)
        torch.manual_seed(0)
        self.vectors = nn.Embedding(tokenizer.get_vocab_size(), 16)
        self.eval()

    def tokenise(self, texts):
        return [encoding.ids for encoding in self.tokenizer.encode_batch(texts)]

    def tokenizer_json(self):
        return self.tokenizer.to_str()

    def encode(self, tokens, mask):
        weights = mask.unsqueeze(-1).float()
        return (self.vectors(tokens) * weights).sum(1) / weights.sum(1)
