"""Kinds of models of transformers, by `dhlo compile hf:FOLDER` and by calls of Python, beside eager at several sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import transformers as hf
from torch.utils._pytree import tree_leaves

import dhlo
from dhlo.integrations.caches import CACHE
from dhlo.integrations.transformers import DhloConfig, DhloExporter, attach, compile_decoder, compile_encoder_decoder
from tests.test_encoder_decoder import model_of as encoder_decoder
from tests.test_pretrained import compile_cli
from tests.test_transformers import COMMON, decoder, looking

Kind = tuple[Callable[[], Any], Callable[..., dict[str, Any]], Sequence[tuple[int, ...]]]
"""A model, the arguments of its forward or of generate() of some sizes, and the sizes."""

LAYERS: dict[str, Any] = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48)
TEXT: dict[str, Any] = {**LAYERS, "vocab_size": 99, "max_position_embeddings": 64, "pad_token_id": 0}
IMAGE: dict[str, Any] = {**LAYERS, "image_size": 16, "patch_size": 4}
SAMPLES: dict[str, Any] = {
    **LAYERS,
    "vocab_size": 99,
    "conv_dim": (16, 16),
    "conv_stride": (5, 4),
    "conv_kernel": (10, 8),
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}
RESNET: dict[str, Any] = dict(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")


def text(batch: int, length: int) -> dict[str, Any]:
    """Lines of tokens, some of which end early."""
    mask = (torch.arange(length)[None] < length - 2 * torch.arange(batch)[:, None]).long()
    mask[:, 0] = 1
    return {"input_ids": torch.randint(3, 98, (batch, length)) * mask, "attention_mask": mask}


def pairs(batch: int, length: int) -> dict[str, Any]:
    """The same, of two sentences each."""
    first = torch.arange(length).expand(batch, length) < length // 2
    return {**text(batch, length), "token_type_ids": (~first).long()}


def prompts(batch: int, length: int) -> dict[str, Any]:
    """The same, with what is missing on the left."""
    return {name: x.flip(1) for name, x in text(batch, length).items()}


def images(batch: int, height: int, width: int) -> dict[str, Any]:
    return {"pixel_values": torch.randn(batch, 3, height, width)}


def masked_images(batch: int, height: int, width: int) -> dict[str, Any]:
    mask = torch.ones(batch, height, width, dtype=torch.int64)
    mask[0, height // 2 :] = 0
    return {**images(batch, height, width), "pixel_mask": mask}


def both(lines: int, length: int, pictures: int) -> dict[str, Any]:
    return {**text(lines, length), **images(pictures, 16, 16)}


def samples(batch: int, length: int) -> dict[str, Any]:
    return {"input_values": torch.randn(batch, length)}


def spectrograms(batch: int) -> dict[str, Any]:
    return {"input_features": torch.randn(batch, 8, 40)}


def looks(batch: int, length: int) -> dict[str, Any]:
    """Prompts that begin with an image."""
    ids = torch.randint(3, 98, (batch, length))
    ids[:, :16] = 98
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **images(batch, 16, 16)}


def detr() -> Any:
    config = hf.DetrConfig(
        backbone_config=hf.ResNetConfig(**RESNET, out_features=["stage2"]),
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        num_queries=5,
        num_labels=3,
    )
    return hf.DetrForObjectDetection(config)


def segformer() -> Any:
    config = hf.SegformerConfig(
        hidden_sizes=[8, 16, 24, 32],
        depths=[1, 1, 1, 1],
        num_attention_heads=[1, 2, 2, 4],
        decoder_hidden_size=16,
        num_labels=3,
    )
    return hf.SegformerForSemanticSegmentation(config)


def deberta() -> Any:
    config = hf.DebertaV2Config(
        **TEXT,
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        position_buckets=8,
        share_att_key=True,
        norm_rel_ebd="layer_norm",
    )
    return hf.DebertaV2Model(config)


def two_towers(kind: str) -> Any:
    name = {"clip": "CLIP", "siglip": "Siglip"}[kind]
    more = {"projection_dim": 16} if kind == "clip" else {}
    return getattr(hf, f"{name}Model")(getattr(hf, f"{name}Config")(text_config=TEXT, vision_config=IMAGE, **more))


def causal(config: Any) -> Any:
    model = hf.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1:
                p.mul_(5)  # random weights as they come say the same token again and again
    return model


def bart() -> Any:
    config = hf.BartConfig(
        vocab_size=99,
        d_model=32,
        encoder_layers=1,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=2,
        forced_eos_token_id=None,
        init_std=0.3,
    )
    return hf.BartForConditionalGeneration(config)


EXPERTS: dict[str, Any] = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, head_dim=8)
MAMBA: dict[str, Any] = dict(
    vocab_size=99, hidden_size=32, num_hidden_layers=2, num_heads=8, head_dim=8, state_size=8, n_groups=2, chunk_size=16
)
LINES, PICTURES, PROMPTS = ((2, 7), (1, 3), (5, 12)), ((2, 16, 16), (1, 16, 16), (5, 16, 16)), ((2, 7), (1, 12), (3, 5))
PIXELS, SECONDS = ((2, 64, 64), (1, 96, 64), (3, 72, 96)), ((2, 4000), (1, 2345), (3, 7001))


def video() -> Any:
    """It has the features of all images in one tensor."""
    seen = dict(model_type="clip_vision_model", **IMAGE)
    said = dict(model_type="llama", num_key_value_heads=4, **LAYERS, vocab_size=99)
    config = hf.VideoLlavaConfig(vision_config=seen, text_config=said, image_token_index=98, video_token_index=97)
    return hf.VideoLlavaForConditionalGeneration(config).eval()


KINDS: dict[str, Kind] = {
    "bert": (lambda: hf.BertForSequenceClassification(hf.BertConfig(**TEXT)), pairs, LINES),
    "roberta": (lambda: hf.RobertaForMaskedLM(hf.RobertaConfig(**TEXT, type_vocab_size=1)), text, LINES),
    "deberta-v2": (deberta, text, LINES),
    "modernbert": (
        lambda: hf.ModernBertForMaskedLM(
            hf.ModernBertConfig(**TEXT, local_attention=6, layer_types=["full_attention", "sliding_attention"])
        ),
        text,
        LINES,
    ),
    "mpnet": (lambda: hf.MPNetModel(hf.MPNetConfig(**TEXT)), text, LINES),
    "vit": (lambda: hf.ViTForImageClassification(hf.ViTConfig(**IMAGE)), images, PICTURES),
    "dinov2": (lambda: hf.Dinov2Model(hf.Dinov2Config(**IMAGE)), images, ((2, 16, 16), (1, 24, 16), (3, 12, 32))),
    "resnet": (lambda: hf.ResNetForImageClassification(hf.ResNetConfig(**RESNET)), images, PIXELS),
    "segformer": (segformer, images, PIXELS),
    "detr": (detr, masked_images, PIXELS),
    "clip": (lambda: two_towers("clip"), both, ((2, 7, 3), (1, 3, 1), (5, 12, 2))),
    "siglip": (lambda: two_towers("siglip"), both, ((2, 7, 3), (1, 3, 1), (5, 12, 2))),
    "wav2vec2": (lambda: hf.Wav2Vec2ForCTC(hf.Wav2Vec2Config(**SAMPLES)), samples, SECONDS),
    "hubert": (lambda: hf.HubertModel(hf.HubertConfig(**SAMPLES)), samples, SECONDS),
    "llama": (lambda: decoder("llama"), prompts, PROMPTS),
    "qwen3": (lambda: decoder("qwen3"), prompts, PROMPTS),
    "qwen3-moe": (lambda: causal(hf.Qwen3MoeConfig(**COMMON, **EXPERTS)), prompts, PROMPTS),
    "gemma3": (lambda: decoder("gemma3"), prompts, PROMPTS),
    "mixtral": (lambda: decoder("mixtral"), prompts, PROMPTS),
    "deepseek-v3": (lambda: decoder("deepseek_v3"), prompts, PROMPTS),
    "gpt2": (
        lambda: causal(hf.GPT2Config(vocab_size=99, n_embd=32, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=2)),
        prompts,
        PROMPTS,
    ),
    "phi3": (lambda: causal(hf.Phi3Config(**COMMON)), prompts, PROMPTS),
    "mamba2": (lambda: hf.Mamba2ForCausalLM(hf.Mamba2Config(**MAMBA)), text, ((2, 7), (1, 4), (5, 12))),
    "llava": (looking, looks, ((2, 20), (1, 17), (3, 24))),
    "video-llava": (video, prompts, PROMPTS),
    "t5": (lambda: encoder_decoder("t5"), text, PROMPTS),
    "bart": (bart, text, PROMPTS),
    "marian": (lambda: encoder_decoder("marian"), text, PROMPTS),
    "whisper": (lambda: encoder_decoder("whisper"), spectrograms, ((2,), (1,), (3,))),
}

GENERATE = {"t5", "bart", "marian", *(n for n, (_, make, _) in KINDS.items() if make in (prompts, looks, spectrograms))}
BY_DEFAULT = {"bert", "resnet"}


def results(name: str, model: Any, inputs: dict[str, Any]) -> list[torch.Tensor]:
    """What forward returns but for caches, or the tokens and the logits of generate()."""
    if name not in GENERATE:
        with torch.no_grad():
            return tree_leaves({k: v for k, v in model(**inputs).items() if k != CACHE})
    call = dict(max_new_tokens=6, do_sample=False, pad_token_id=0, output_logits=True, return_dict_in_generate=True)
    out = model.generate(**inputs, **call)
    return [out.sequences, *out.logits]


@pytest.mark.parametrize("name", [n if n in BY_DEFAULT else pytest.param(n, marks=pytest.mark.slow) for n in KINDS])
def test_kind(name, tmp_path):
    build, make, sizes = KINDS[name]
    torch.manual_seed(0)
    made = build()
    made.save_pretrained(tmp_path / name)
    model = type(made).from_pretrained(tmp_path / name).eval()
    torch.manual_seed(1)
    inputs = [make(*size) for size in sizes]
    want = [results(name, model, x) for x in inputs]

    def check(run: Any) -> None:
        for x, right in zip(inputs, want, strict=True):
            got = results(name, run, x)
            torch.testing.assert_close(got, right, rtol=1e-3, atol=1e-4)

    compile_cli(f"hf:{tmp_path / name}", "-o", tmp_path / "model.so")
    loaded = dhlo.load(tmp_path / "model.so")
    if name not in GENERATE:
        check(loaded)
        if name not in BY_DEFAULT:
            check(DhloExporter().export(model, inputs[0], DhloConfig()))
        return
    attach(model, loaded)
    check(model)
    (compile_encoder_decoder if model.config.is_encoder_decoder else compile_decoder)(model)  # once more
    check(model)
