"""Tiny networks of the hub's families with random weights, saved as the hub lays them out."""

import json
import string
from pathlib import Path

import torch

STANDARD = {
    "do_resize": True,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.5, 0.4, 0.3],
    "image_std": [0.2, 0.3, 0.25],
}
LAYERS = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
PATCHES = {**LAYERS, "image_size": 32, "patch_size": 8}
# What the published files of each family say, at a tiny size: of DINOv2, DINOv3, CLIP, SigLIP, ConvNeXt, ViT.
PROCESSORS = {
    "dinov2": {
        "size": {"shortest_edge": 37},
        "do_center_crop": True,
        "crop_size": {"height": 32, "width": 32},
        "resample": 3,
        "image_processor_type": "BitImageProcessor",
    },
    "dinov3_vit": {
        "size": {"height": 32, "width": 32},
        "resample": 2,
        "image_processor_type": "DINOv3ViTImageProcessorFast",
    },
    "clip": {
        "size": 32,
        "crop_size": 32,
        "do_center_crop": True,
        "resample": 3,
        "feature_extractor_type": "CLIPFeatureExtractor",
    },
    "siglip": {
        "size": {"height": 32, "width": 32},
        "resample": 3,
        "image_processor_type": "SiglipImageProcessor",
    },
    "convnext": {
        "size": 32,
        "crop_pct": 0.875,
        "resample": 3,
        "feature_extractor_type": "ConvNextFeatureExtractor",
    },
    "vit": {"size": 32, "resample": 2, "feature_extractor_type": "ViTFeatureExtractor"},
}


def save_tiny(family: str, folder: Path, seed: int = 0, **processor: object) -> torch.nn.Module:
    """Save a tiny network of a family with its preprocessing, and its tokenizer if it reads texts, too."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = _network(family)
    network.eval().save_pretrained(folder)
    facts = {**STANDARD, **PROCESSORS[family], **processor}
    (folder / "preprocessor_config.json").write_text(json.dumps(facts))
    if family in ("clip", "siglip"):
        _tokenizer().save_pretrained(folder)
    return network


def _network(family: str) -> torch.nn.Module:
    import transformers as hf

    text = {**LAYERS, "vocab_size": 40, "max_position_embeddings": 24}
    if family == "dinov2":
        return hf.Dinov2Model(hf.Dinov2Config(**PATCHES))
    if family == "dinov3_vit":
        return hf.DINOv3ViTModel(hf.DINOv3ViTConfig(**PATCHES, num_register_tokens=2))
    if family == "clip":
        special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 3}
        config = hf.CLIPConfig(text_config={**text, **special}, vision_config=PATCHES, projection_dim=12)
        return hf.CLIPModel(config)
    if family == "siglip":
        special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 3}
        config = hf.SiglipConfig(text_config={**text, **special}, vision_config=PATCHES)
        return hf.SiglipModel(config)
    if family == "convnext":
        return hf.ConvNextModel(
            hf.ConvNextConfig(hidden_sizes=[8, 8, 8, 16], depths=[1, 1, 1, 1], image_size=32)
        )
    return hf.ViTForImageClassification(hf.ViTConfig(**PATCHES))  # with classes, without a pooling layer


def _tokenizer():
    """One token per lower-case letter, with a beginning and an end."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ["<pad>", "<s>", "<unk>", "</s>"]
    vocabulary = {token: index for index, token in enumerate([*special, *string.ascii_lowercase])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.post_processor = processors.TemplateProcessing(
        "<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", unk_token="<unk>", eos_token="</s>"
    )


def save_sentence_encoder(folder: Path, seed: int = 0) -> None:
    """Save a tiny BERT with mean pooling, as sentence-transformers lays it out."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from transformers import BertConfig, BertModel

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        bert = BertModel(BertConfig(**LAYERS, vocab_size=40, max_position_embeddings=24))
    inner = folder.parent / f"{folder.name}-bert"
    bert.save_pretrained(inner)
    _tokenizer().save_pretrained(inner)
    transformer = Transformer(str(inner), max_seq_length=16)
    pooling = Pooling(transformer.get_embedding_dimension())
    SentenceTransformer(modules=[transformer, pooling], device="cpu").save(str(folder))
