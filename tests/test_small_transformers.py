"""Small models of transformers whose calls are special: decoding steps, prompts, codes, images among tokens; compiled once each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.utils._pytree import tree_leaves

from dhlo.integrations.caches import CACHE
from tests.small_models import Small
from tests.test_small_models import GROUPS, SIZE, Calls, check, ids, mask

T: Any = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow
D = Dim.DYNAMIC
rn = torch.randn
LINES = ({0: D, 1: D}, {0: D, 1: D})
PATCHES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}


class Step(nn.Module):
    """Tokens after a cache of keys and values, which comes back longer."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens, mask, past):
        cache = T.DynamicCache(past)
        out = self.model(input_ids=tokens, attention_mask=mask, use_cache=True, **{CACHE: cache})
        return out.logits, [(layer.keys, layer.values) for layer in cache.layers]


STEPS: dict[str, dict[str, Any]] = {
    "JetMoe": {
        "vocab_size": 99,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "kv_channels": 8,
        "intermediate_size": 64,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },  # heads repeated in turn
    "Mpt": {"vocab_size": 99, "d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 128},  # a slice of linear biases
    "DeepseekV3": {
        **SIZE,
        "num_key_value_heads": 4,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
        "n_group": 2,
        "topk_group": 1,
        "first_k_dense_replace": 1,
    },
}


@pytest.mark.parametrize("name", STEPS)
def test_decoding_step(name: str) -> None:
    torch.manual_seed(0)
    model = getattr(T, f"{name}ForCausalLM")(getattr(T, f"{name}Config")(**STEPS[name])).eval()
    with torch.no_grad():
        layers = getattr(model(input_ids=ids(1, 2), use_cache=True), CACHE).layers
    parts = [[(t.shape[1], t.shape[3]) for t in (layer.keys, layer.values)] for layer in layers]

    def args(b: int, p: int, s: int) -> tuple[Any, ...]:
        return ids(b, s), mask(b, p + s).flip(1), [tuple(rn(b, heads, p, d) for heads, d in part) for part in parts]

    past = [({0: D, 2: D}, {0: D, 2: D})] * len(parts)
    check((Step(model), args, (*LINES, past), ((2, 10, 3), (1, 5, 1), (3, 20, 1), (1, 1, 4))))


def deberta() -> Small:
    config = T.DebertaConfig(**SIZE, relative_attention=True, pos_att_type=["c2p", "p2c"], max_relative_positions=16)
    call = lambda m, i, k: m(input_ids=i, attention_mask=k)[0]
    return Calls(T.DebertaModel(config), call), lambda b, s: (ids(b, s), mask(b, s)), (LINES,), ((2, 7), (1, 2), (3, 12))


def jamba() -> Small:
    config = T.JambaConfig(
        **SIZE,
        **GROUPS,
        num_experts=4,
        mamba_d_state=4,
        attn_layer_offset=1,
        attn_layer_period=2,
        expert_layer_offset=1,
        expert_layer_period=2,
        use_mamba_kernels=False,
    )
    call = lambda m, i: m(input_ids=i, use_cache=False)[0]
    return Calls(T.JambaModel(config), call), lambda b: (ids(b, 7),), (({0: D},),), ((2,), (1,), (3,))


def segment_anything() -> Small:
    config = T.SamConfig(
        vision_config={
            "hidden_size": 32,
            "output_channels": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "image_size": 64,
            "patch_size": 8,
            "window_size": 3,
            "global_attn_indexes": [1],
            "mlp_dim": 64,
            "num_pos_feats": 8,
        },
        prompt_encoder_config={"hidden_size": 16, "image_size": 64, "patch_size": 8, "mask_input_channels": 4},
        mask_decoder_config={
            "hidden_size": 16,
            "mlp_dim": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "iou_head_hidden_dim": 16,
        },
    )
    call = lambda m, e, p, n: tree_leaves(m(image_embeddings=e, input_points=p, input_labels=n))[:2]
    args = lambda b, n, k: (rn(b, 16, 8, 8), torch.rand(b, n, k, 2) * 64, torch.randint(0, 2, (b, n, k)))
    points = {0: D, 1: D, 2: D}
    return Calls(T.SamModel(config), call), args, (({0: D}, points, points),), ((2, 3, 4), (1, 1, 1), (3, 2, 5))


def codec() -> Small:
    config = T.DacConfig(
        encoder_hidden_size=8,
        decoder_hidden_size=32,
        downsampling_ratios=[2, 2],
        upsampling_ratios=[2, 2],
        n_codebooks=2,
        codebook_size=16,
        codebook_dim=4,
    )
    call = lambda m, x: m(x, return_dict=True).audio_values
    return Calls(T.DacModel(config), call), lambda b, t: (rn(b, 1, t),), (({0: D, 2: D},),), ((2, 160), (1, 64), (3, 332))


def speech_tokens() -> Small:
    config = T.MimiConfig(
        num_filters=4,
        hidden_size=32,
        codebook_size=16,
        codebook_dim=16,
        vector_quantization_hidden_dimension=16,
        upsampling_ratios=[4, 2],
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=8,
        intermediate_size=32,
        num_quantizers=4,
        num_semantic_quantizers=1,
        upsample_groups=32,
        sliding_window=8,
        _frame_rate=None,
    )
    call = lambda m, codes: m.decode(codes, return_dict=True).audio_values
    return (
        Calls(T.MimiModel(config), call),
        lambda b, t: (torch.randint(0, 16, (b, 4, t)),),
        (({0: D, 2: D},),),
        ((2, 5), (1, 1), (3, 12)),
    )


def vocoder() -> Small:
    """Convolutions whose kernels are computed."""
    config = T.UnivNetConfig(
        model_in_channels=8,
        model_hidden_channels=8,
        num_mel_bins=8,
        resblock_kernel_sizes=[3, 3],
        resblock_stride_sizes=[4, 2],
        resblock_dilation_sizes=[[1, 3], [1, 3]],
        kernel_predictor_num_blocks=1,
        kernel_predictor_hidden_channels=8,
        kernel_predictor_conv_size=3,
    )
    call = lambda m, x, n: m(x, noise_sequence=n).waveforms
    return Calls(T.UnivNetModel(config), call), lambda b, t: (rn(b, t, 8), rn(b, t, 8)), (LINES,), ((2, 9), (1, 4), (3, 20))


def images_among_tokens() -> Small:
    """The tokens before the answer attend to each other."""
    config = T.PaliGemmaConfig(
        vision_config=T.SiglipVisionConfig(**PATCHES).to_dict(),
        text_config=T.GemmaConfig(**SIZE, **GROUPS, head_dim=8).to_dict(),
        image_token_id=98,
        image_token_index=98,
        projection_dim=32,
        hidden_size=32,
    )

    def args(b: int, s: int) -> tuple[Any, ...]:
        tokens = ids(b, s)
        tokens[:, :16] = 98
        return tokens, rn(b, 3, 32, 32), torch.ones(b, s, dtype=torch.int64), torch.zeros(b, s, dtype=torch.int64)

    call = lambda m, i, x, k, t: m(input_ids=i, pixel_values=x, attention_mask=k, token_type_ids=t, use_cache=False).logits
    line = LINES[0]
    sizes = (2, 20), (1, 17), (3, 30)
    return Calls(T.PaliGemmaForConditionalGeneration(config), call), args, ((line, {0: D}, line, line),), sizes


def forecast() -> Small:
    config = T.TimesFmConfig(
        patch_length=8,
        horizon_length=16,
        hidden_size=32,
        intermediate_size=64,
        head_dim=8,
        num_hidden_layers=2,
        num_attention_heads=4,
    )

    def args(b: int, n: int) -> tuple[Any, ...]:
        padding = torch.zeros(b, 8 * n, dtype=torch.int64)
        padding[0, :3] = 1
        return rn(b, 8 * n), padding, torch.randint(0, 3, (b, 1))

    call = lambda m, v, p, f: m(past_values=v, past_values_padding=p, freq=f).last_hidden_state
    patches = 8 * Dim("n", min=2, max=64)
    return Calls(T.TimesFmModel(config), call), args, (({0: D, 1: patches}, {0: D, 1: D}, {0: D}),), ((2, 4), (1, 2), (3, 9))


MODELS: list[Callable[[], Small]] = [
    deberta,
    jamba,
    segment_anything,
    codec,
    speech_tokens,
    vocoder,
    images_among_tokens,
    forecast,
]


@pytest.mark.parametrize("build", MODELS, ids=lambda f: f.__name__)
def test_model(build: Callable[[], Small]) -> None:
    torch.manual_seed(0)
    check(build())
