"""Real architectures with random weights, small or full size, and how to export them with dynamic shapes."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

from dhlo.integrations.caches import CACHE

__all__ = ["MODELS", "Model"]


@dataclass
class Model:
    """A module, its inputs as a function of sizes, the dynamic dims, and the range of every size."""

    module: nn.Module
    inputs: Callable[..., tuple[Any, ...]]
    dynamic_shapes: Any
    ranges: list[tuple[int, int]]
    export_sizes: tuple[int, ...]
    export_options: dict[str, Any]

    def export(self) -> torch.export.ExportedProgram:
        with torch.no_grad():
            return torch.export.export(
                self.module, self.inputs(*self.export_sizes), dynamic_shapes=self.dynamic_shapes, **self.export_options
            )

    def sizes(self, count: int, cap: int, seed: int = 0) -> list[tuple[int, ...]]:
        """Random sizes in random order, the ends of the ranges (up to `cap`), 1 and odd ones among them."""
        rng = random.Random(seed)
        ranges = [(lo, min(hi, cap)) for lo, hi in self.ranges]
        fixed = [tuple(lo for lo, _ in ranges), tuple(hi for _, hi in ranges)]
        fixed += [tuple(hi if i == k else lo for i, (lo, hi) in enumerate(ranges)) for k in range(len(ranges))]
        some = [tuple(rng.randint(lo, hi) | rng.randint(0, 1) if lo < hi else lo for lo, hi in ranges) for _ in range(count)]
        some = [tuple(min(s, hi) for s, (_, hi) in zip(x, ranges, strict=True)) for x in some]
        out = (fixed + some)[: max(count, len(fixed))]
        rng.shuffle(out)
        return out


class _Bert(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        from transformers import BertModel

        self.m = BertModel(config, add_pooling_layer=False)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.m(input_ids=ids, attention_mask=mask).last_hidden_state


def bert(full: bool) -> Model:
    from transformers import BertConfig

    config = (
        BertConfig()
        if full
        else BertConfig(vocab_size=200, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128)
    )

    def inputs(b: int, s: int) -> tuple[Any, ...]:
        mask = torch.ones(b, s, dtype=torch.int64)
        for i in range(1, b):
            mask[i, s - min(s - 1, 3 * i) :] = 0
        return torch.randint(0, config.vocab_size, (b, s)), mask

    b, s = Dim("batch", min=1, max=64), Dim("seq", min=1, max=512)
    return Model(_Bert(config), inputs, ({0: b, 1: s}, {0: b, 1: s}), [(1, 64), (1, 512)], (2, 10), {})


def _qwen(full: bool) -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    size = (
        dict(
            vocab_size=32000,
            hidden_size=768,
            num_hidden_layers=12,
            num_attention_heads=12,
            num_key_value_heads=4,
            intermediate_size=2048,
            head_dim=64,
        )
        if full
        else dict(
            vocab_size=160,
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=128,
            head_dim=16,
        )
    )
    model = Qwen3ForCausalLM(Qwen3Config(**size, tie_word_embeddings=True))
    model.config.use_cache = False
    return model


class _Prefill(nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=ids, use_cache=False).logits


class _Decode(nn.Module):
    """One token against a KV cache given as a flat list of (k, v)."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, past: Any) -> Any:
        from transformers import DynamicCache

        cache = DynamicCache(past)
        out = self.model(input_ids=ids, attention_mask=mask, use_cache=True, **{CACHE: cache})
        return out.logits, [(layer.keys, layer.values) for layer in cache.layers]


def qwen_prefill(full: bool) -> Model:
    model = _qwen(full)
    return Model(
        _Prefill(model), lambda s: (torch.randint(0, model.config.vocab_size, (1, s)),), ({1: Dim.DYNAMIC},), [(1, 512)], (12,), {}
    )


def qwen_decode(full: bool) -> Model:
    model = _qwen(full)
    c = model.config

    def inputs(p: int) -> tuple[Any, ...]:
        kv = [
            (torch.randn(1, c.num_key_value_heads, p, c.head_dim), torch.randn(1, c.num_key_value_heads, p, c.head_dim))
            for _ in range(c.num_hidden_layers)
        ]
        return torch.randint(0, c.vocab_size, (1, 1)), torch.ones(1, p + 1, dtype=torch.int64), kv

    t = ({2: Dim.DYNAMIC}, {2: Dim.DYNAMIC})
    return Model(_Decode(model), inputs, ({}, {1: Dim.DYNAMIC}, [t] * c.num_hidden_layers), [(0, 600)], (10,), {})


class _Block(nn.Module):
    def __init__(self, i: int, o: int, s: int) -> None:
        super().__init__()
        self.c1, self.b1 = nn.Conv2d(i, o, 3, s, 1, bias=False), nn.BatchNorm2d(o)
        self.c2, self.b2 = nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o)
        self.down = nn.Sequential(nn.Conv2d(i, o, 1, s, bias=False), nn.BatchNorm2d(o)) if s != 1 or i != o else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.b2(self.c2(F.relu(self.b1(self.c1(x))))) + self.down(x))


def resnet18(full: bool) -> Model:
    w = 64 if full else 8
    widths = ((1, 1, 1), (1, 1, 1), (1, 2, 2), (2, 2, 1), (2, 4, 2), (4, 4, 1), (4, 8, 2), (8, 8, 1))
    plan = [(w * i, w * o, s) for i, o, s in widths]
    m = nn.Sequential(
        nn.Conv2d(3, w, 7, 2, 3, bias=False),
        nn.BatchNorm2d(w),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
        *(_Block(*p) for p in plan),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8 * w, 1000 if full else 10),
    )
    for x in m.modules():
        if isinstance(x, nn.BatchNorm2d):
            x.running_mean = torch.randn_like(x.running_mean) * 0.1
            x.running_var = torch.rand_like(x.running_var) + 0.5
    hw = [Dim(n, min=64, max=512) for n in ("h", "w")]
    return Model(
        m,
        lambda b, h, w: (torch.randn(b, 3, h, w),),
        ({0: Dim("batch", min=1, max=16), 2: hw[0], 3: hw[1]},),
        [(1, 16), (64, 512), (64, 512)],
        (2, 96, 80),
        {},
    )


class _EarlyExit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.exit, self.more, self.last = (nn.Linear(24, 24) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x).relu()
        sure = h.mean() > 0.24

        def leave(h: torch.Tensor) -> torch.Tensor:
            return self.exit(h).softmax(-1)

        def go_on(h: torch.Tensor) -> torch.Tensor:
            return self.last(self.more(h).relu()).softmax(-1)

        return torch.cond(sure, leave, go_on, (h,))


def early_exit(full: bool) -> Model:
    return Model(
        _EarlyExit(), lambda n: (torch.randn(n, 24) * torch.rand(1) * 2,), ({0: Dim("n", min=1, max=1000)},), [(1, 1000)], (7,), {}
    )


class _Positive(nn.Module):
    """Data-dependent sizes: keeps the positive elements and works on as many as there are."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        i = x.nonzero().squeeze(1)
        y = x[i]
        return i, (y * 2).exp() / (y.sum() + 1)


def nonzero(full: bool) -> Model:
    return Model(
        _Positive(), lambda n: ((torch.randn(n) * (torch.rand(n) > 0.5)),), ({0: Dim("n", min=1, max=3000)},), [(1, 3000)], (9,), {}
    )


MODELS: dict[str, Callable[[bool], Model]] = {
    f.__name__: f for f in (bert, qwen_prefill, qwen_decode, resnet18, early_exit, nonzero)
}
