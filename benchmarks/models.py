"""The modules that workloads run: plain PyTorch with random weights, sized by arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = [
    "Decoder",
    "Ids",
    "Maps",
    "MixtureOfExperts",
    "Pixels",
    "Prefill",
    "Products",
    "chain",
    "function",
    "resnet18",
    "rmsnorm_residual",
    "rope",
]


class Ids(nn.Module):
    """A transformers encoder: ids and mask [batch, seq] to the last hidden state."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        state: Tensor = self.model(input_ids=ids, attention_mask=mask).last_hidden_state
        return state


class Pixels(nn.Module):
    """A transformers vision encoder: images [batch, channels, height, width] to the state of the first token."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        state: Tensor = self.model(pixel_values=x).last_hidden_state[:, 0]
        return state


class Maps(nn.Module):
    """A convolutional network of transformers: images [batch, channels, height, width] to its last maps."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        state: Tensor = self.model(pixel_values=x).last_hidden_state
        return state


# ---------------------------------------------------------------------- functions as modules
class _Unary(nn.Module):
    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, x: Tensor) -> Any:
        return self.fn(x)


class _Binary(_Unary):
    def forward(self, x: Tensor, y: Tensor) -> Any:  # type: ignore[override]
        return self.fn(x, y)


class _Ternary(_Unary):
    def forward(self, x: Tensor, y: Tensor, z: Tensor) -> Any:  # type: ignore[override]
        return self.fn(x, y, z)


def function(fn: Callable[..., Any]) -> nn.Module:
    """A function of one to three tensors as a module with so many named arguments."""
    return (_Unary, _Binary, _Ternary)[fn.__code__.co_argcount - 1](fn)


def rmsnorm_residual(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """x + r, and its root-mean-square norm scaled by w."""
    h = x + r
    return h, h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6) * w


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding of x [tokens, heads, depth]."""
    a, b = x.chunk(2, -1)
    return x * cos[:, None] + torch.cat((-b, a), -1) * sin[:, None]


def chain(x: Tensor, y: Tensor) -> Tensor:
    """A chain of elementwise functions."""
    z = torch.tanh(x * 0.5 + y)
    z = torch.exp(-z.abs()) * torch.sigmoid(y)
    return torch.clamp(z - x, -2.0, 2.0) * 1.7 + torch.sqrt(y * y + 1.0)


# ---------------------------------------------------------------------- decoder
class Decoder(nn.Module):
    """A decoder with grouped-query attention, rotary positions and a tied output layer; with caches, one step."""

    def __init__(
        self,
        layers: int = 12,
        width: int = 768,
        heads: int = 12,
        kv_heads: int = 4,
        depth: int = 64,
        hidden: int = 2048,
        vocabulary: int = 32000,
    ) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.depth = heads, kv_heads, depth
        self.embed = nn.Embedding(vocabulary, width)
        self.embed.weight.data *= 0.02

        def linear(i: int, o: int) -> nn.Linear:
            return nn.Linear(i, o, bias=False)

        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "n1": nn.RMSNorm(width, eps=1e-6),
                    "q": linear(width, heads * depth),
                    "k": linear(width, kv_heads * depth),
                    "v": linear(width, kv_heads * depth),
                    "qn": nn.RMSNorm(depth, eps=1e-6),
                    "kn": nn.RMSNorm(depth, eps=1e-6),
                    "o": linear(heads * depth, width),
                    "n2": nn.RMSNorm(width, eps=1e-6),
                    "gate": linear(width, hidden),
                    "up": linear(width, hidden),
                    "down": linear(hidden, width),
                }
            )
            for _ in range(layers)
        )
        self.norm = nn.RMSNorm(width, eps=1e-6)
        self.inv_freq: Tensor
        self.register_buffer("inv_freq", 10000.0 ** (-torch.arange(0, depth, 2).float() / depth))

    def _rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat((-b, a), -1) * sin

    def forward(self, ids: Tensor, pos: Tensor, keys: Any = None, values: Any = None) -> tuple[Tensor, Any, Any]:
        batch, tokens = ids.shape
        x = self.embed(ids)
        f = pos[:, None, :, None].to(self.inv_freq.dtype) * self.inv_freq
        f = torch.cat((f, f), -1)
        cos, sin = f.cos(), f.sin()
        new_keys, new_values = [], []
        m: Any
        for i, m in enumerate(self.layers):
            h = m["n1"](x)
            q = m["qn"](m["q"](h).view(batch, tokens, self.heads, self.depth)).transpose(1, 2)
            k = m["kn"](m["k"](h).view(batch, tokens, self.kv_heads, self.depth)).transpose(1, 2)
            v = m["v"](h).view(batch, tokens, self.kv_heads, self.depth).transpose(1, 2)
            q, k = self._rotate(q, cos, sin), self._rotate(k, cos, sin)
            if keys is not None:
                k, v = torch.cat((keys[i], k), 2), torch.cat((values[i], v), 2)
            new_keys.append(k)
            new_values.append(v)
            g = self.heads // self.kv_heads
            a = F.scaled_dot_product_attention(q, k.repeat_interleave(g, 1), v.repeat_interleave(g, 1), is_causal=keys is None)
            x = x + m["o"](a.transpose(1, 2).reshape(batch, tokens, -1))
            h = m["n2"](x)
            x = x + m["down"](F.silu(m["gate"](h)) * m["up"](h))
        return self.norm(x[:, -1:]) @ self.embed.weight.t(), new_keys, new_values


class Prefill(Decoder):
    """The decoder on a whole prompt, without caches."""

    def forward(self, ids: Tensor, pos: Tensor) -> tuple[Tensor, Any, Any]:  # type: ignore[override]
        return super().forward(ids, pos)


# ---------------------------------------------------------------------- mixture of experts
class Products(nn.Module):
    """The products of a decoder's layers with next to nothing between them: all weights pass the caches from call to call."""

    def __init__(self, width: int, kv_width: int, hidden: int, layers: int, vocabulary: int) -> None:
        super().__init__()
        sizes = (
            (width, width),
            (width, kv_width),
            (width, kv_width),
            (width, width),
            (width, hidden),
            (width, hidden),
            (hidden, width),
        )
        self.layers = nn.ModuleList(nn.ModuleList(nn.Linear(i, o, bias=False) for i, o in sizes) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            q, k, v, o, gate, up, down = layer  # type: ignore[misc]
            x = x + o(q(x) + torch.cat([k(x), v(x)], -1).repeat(1, x.shape[1] // k(x).shape[1] // 2))
            x = x + down(F.relu(gate(x)) * up(x))
        return self.head(x)  # type: ignore[no-any-return]


class MixtureOfExperts(nn.Module):
    """A block of gated experts of which each token takes `topk`. `loop` gathers the tokens of one expert after the
    other, so sizes depend on data; otherwise every expert sees every token."""

    def __init__(self, experts: int, topk: int, hidden: int, loop: bool, width: int = 512) -> None:
        super().__init__()
        self.experts, self.topk, self.loop = experts, topk, loop
        self.router = nn.Linear(width, experts, bias=False)
        self.w13 = nn.Parameter(torch.randn(experts, width, 2 * hidden) * width**-0.5)
        self.w2 = nn.Parameter(torch.randn(experts, hidden, width) * hidden**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        p, chosen = self.router(x).softmax(-1).topk(self.topk, -1)
        p = p / p.sum(-1, keepdim=True)
        if not self.loop:
            gate = torch.zeros(x.shape[0], self.experts, dtype=x.dtype).scatter(1, chosen, p)
            g, u = torch.matmul(x[None], self.w13).chunk(2, -1)
            return (torch.matmul(F.silu(g) * u, self.w2) * gate.t()[:, :, None]).sum(0)
        y = torch.zeros_like(x)
        for e in range(self.experts):
            t, k = torch.where(chosen == e)
            g, u = (x[t] @ self.w13[e]).chunk(2, -1)
            y = y.index_add(0, t, ((F.silu(g) * u) @ self.w2[e]) * p[t, k][:, None])
        return y


# ---------------------------------------------------------------------- convolutional network
class _Block(nn.Module):
    def __init__(self, i: int, o: int, stride: int) -> None:
        super().__init__()
        self.c1, self.b1 = nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o)
        self.c2, self.b2 = nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o)
        self.down: nn.Module = nn.Identity()
        if stride != 1 or i != o:
            self.down = nn.Sequential(nn.Conv2d(i, o, 1, stride, bias=False), nn.BatchNorm2d(o))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.b2(self.c2(F.relu(self.b1(self.c1(x))))) + self.down(x))


def resnet18(width: int = 64, classes: int = 1000) -> nn.Module:
    """ResNet-18 whose first stage has `width` channels."""
    w = [width << k for k in range(4)]
    plan = [
        (w[0], w[0], 1),
        (w[0], w[0], 1),
        *(s for k in range(3) for s in ((w[k], w[k + 1], 2), (w[k + 1], w[k + 1], 1))),
    ]
    stem = (nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(w[3], classes))
    return nn.Sequential(*stem, *(_Block(*p) for p in plan), *head)
