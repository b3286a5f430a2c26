"""Small models of many kinds, ours and of transformers: each, compiled once, serves other sizes as eager does."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim, export
from torch.utils._pytree import tree_leaves

import dhlo
from dhlo.integrations.caches import CACHE
from tests import small_decoders, small_vision  # noqa: F401  (which add to SMALL)
from tests.plans import assert_plan_is_run
from tests.small_models import SMALL, Small

pytestmark = pytest.mark.slow
D = Dim.DYNAMIC
rn = torch.randn


def check(small: Small) -> None:
    module, args, dims, sizes = small
    module.eval()
    with torch.no_grad():
        model = dhlo.compile(export(module, args(*sizes[0]), dynamic_shapes=dims))
    for n in sizes:
        given = args(*n)
        with torch.no_grad():
            want = tree_leaves(copy.deepcopy(module)(*copy.deepcopy(given)))
        model.reset_state()
        for g, w in zip(tree_leaves(model(*given)), want, strict=True):
            scale = float(w.abs().max()) if w.numel() and w.is_floating_point() else 1.0
            torch.testing.assert_close(g, w, rtol=1e-3, atol=1e-4 * max(1.0, scale))
        assert_plan_is_run(model, *args(*n))


@pytest.mark.parametrize("name", SMALL)
def test_ours(name: str) -> None:
    torch.manual_seed(0)
    check(SMALL[name]())


class Calls(nn.Module):
    """A model and how it is called."""

    def __init__(self, model: nn.Module, call: Callable[..., Any]) -> None:
        super().__init__()
        self.model, self.call = model, call

    def forward(self, *args):
        return self.call(self.model, *args)


def ids(b: int, s: int) -> torch.Tensor:
    return torch.randint(3, 90, (b, s))


def mask(b: int, s: int) -> torch.Tensor:
    out = torch.ones(b, s, dtype=torch.int64)
    for i in range(1, b):
        out[i, s - min(s - 1, 2 * i) :] = 0
    return out


SIZE = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
GROUPS = {"num_key_value_heads": 2, "pad_token_id": 0}
AUDIO = {
    **SIZE,
    "conv_dim": (16, 16, 16),
    "conv_stride": (5, 2, 2),
    "conv_kernel": (10, 3, 3),
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}
LANGUAGE: dict[str, dict[str, Any]] = {  # decoders
    "Bloom": {},  # linear biases
    "Falcon": {"alibi": True},
    "Cohere": GROUPS,
    "Gemma2": {**GROUPS, "head_dim": 8, "sliding_window": 4},
    "GptOss": {**GROUPS, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 4},  # sinks
    "Olmoe": {**GROUPS, "num_experts": 4, "num_experts_per_tok": 2},
    "GPTJ": {"rotary_dim": 4},
}
TEXT: dict[str, dict[str, Any]] = {  # encoders
    "DebertaV2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "max_relative_positions": 16, "position_buckets": 8},
    "ModernBert": {"pad_token_id": 0, "local_attention": 4},
    "ConvBert": {"embedding_size": 32},
    "MPNet": {},
    "RoFormer": {},
}


@pytest.mark.parametrize("name", [*LANGUAGE, *TEXT])
def test_text(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    decoder = name in LANGUAGE
    options = (LANGUAGE if decoder else TEXT)[name]
    config = getattr(transformers, f"{name}Config")(**SIZE | options)
    model = getattr(transformers, name + ("ForCausalLM" if decoder else "Model"))(config)
    more = {"use_cache": False} if decoder else {}
    call = lambda m, i, k: m(input_ids=i, attention_mask=k, **more)[0]
    sizes = ((2, 7), (1, 1), (3, 12), (1, 5))
    check((Calls(model, call), lambda b, s: (ids(b, s), mask(b, s)), (({0: D, 1: D}, {0: D, 1: D}),), sizes))


def test_decoder_of_t5() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.T5Config(vocab_size=99, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
    call = lambda m, e, k, d: m(encoder_outputs=(e,), attention_mask=k, decoder_input_ids=d, use_cache=False).logits
    args = lambda b, s, t: (rn(b, s, 32), mask(b, s), ids(b, t))
    two = {0: D, 1: D}
    model = Calls(transformers.T5ForConditionalGeneration(config), call)
    check((model, args, ((two, two, two),), ((2, 7, 5), (1, 1, 1), (3, 4, 9))))


@pytest.mark.parametrize("name", ["ConvNext", "RegNet"])
def test_vision(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    options = {"hidden_sizes": [8, 16, 32, 32], "depths": [1, 1, 2, 1]} | ({"groups_width": 8} if name == "RegNet" else {})
    model = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**options))
    sizes = ((2, 64, 64), (1, 64, 96), (3, 96, 64))
    check((Calls(model, lambda m, x: m(x)[0]), lambda b, h, w: (rn(b, 3, h, w),), (({0: D, 2: D, 3: D},),), sizes))


@pytest.mark.parametrize("name", ["Hubert", "WavLM"])
def test_audio(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**AUDIO))
    check((Calls(model, lambda m, x: m(x)[0]), lambda b, t: (rn(b, t),), (({0: D, 1: D},),), ((2, 1600), (3, 2345), (4, 1000))))


def test_decoding_into_a_static_cache() -> None:
    """Prompt and single tokens by one program, whose cache is a buffer."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SIZE, **GROUPS)
    lm = transformers.LlamaForCausalLM(config)
    cache = transformers.StaticCache(config=config, max_cache_len=32)
    cache.early_initialization(batch_size=1, num_heads=2, head_dim=8, dtype=torch.float32, device="cpu")

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lm = lm
            for n, layer in enumerate(cache.layers):
                self.register_buffer(f"keys{n}", layer.keys)
                self.register_buffer(f"values{n}", layer.values)

        def forward(self, ids, position):
            where = {"cache_position": position, "position_ids": position[None]}
            return self.lm(input_ids=ids, use_cache=True, **where, **{CACHE: cache}).logits

    module = Decoder().eval()
    fresh = copy.deepcopy(lm)
    with torch.no_grad():
        exported = export(module, (ids(1, 5), torch.arange(5)), dynamic_shapes=({1: D}, {0: D}))
    model = dhlo.compile(exported)
    prompt = ids(1, 12)
    with torch.no_grad():
        want = fresh(input_ids=prompt, use_cache=False).logits
    got = [model(prompt[:, :7], torch.arange(7))] + [model(prompt[:, t : t + 1], torch.tensor([t])) for t in range(7, 12)]
    torch.testing.assert_close(torch.cat(got, 1), want, rtol=1e-3, atol=1e-4)
