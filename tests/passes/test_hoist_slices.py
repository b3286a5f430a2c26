"""Slices that move up: what is computed in part, what must stay whole, and that results are PyTorch's at every size."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dhlo

W, HEADS = 16, 2
S = torch.export.Dim.AUTO(min=4, max=64)


class Model(nn.Module):
    def __init__(self, f: Callable[[Model, Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.f = f
        self.a, self.b = nn.Linear(W, W), nn.Linear(W, W, bias=False)
        self.norm = nn.LayerNorm(W)

    def heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)

    def attend(self, x: Tensor, **how: Any) -> Tensor:
        y = F.scaled_dot_product_attention(self.heads(self.a(x)), self.heads(x), self.heads(x), **how)
        return y.transpose(1, 2).flatten(2)

    def forward(self, x: Tensor) -> Any:
        return self.f(self, x)


def band(x: Tensor) -> Tensor:
    """May see: keys at most two before the query."""
    i = torch.arange(x.shape[1])
    return (i[:, None] - i[None, :] <= 2)[None, None]


def lowered(f: Callable[[Model, Tensor], Any]) -> tuple[Model, dhlo.CompiledModel, list[str]]:
    """The model, compiled with dim 1 dynamic, and the shapes of all products and attentions after the pass."""
    module, texts = Model(f).eval(), {}
    program = torch.export.export(module, (torch.randn(2, 5, W),), dynamic_shapes=({1: S},))
    compiled = dhlo.compile(program, dump=lambda name, text: texts.__setitem__(name, text))
    made = re.findall(r'"dhlo\.(?:matmul|attention)".*-> tensor<([0-9x?]+)xf32', texts["hoist-slices"])
    return module, compiled, made


def check(module: Model, compiled: dhlo.CompiledModel) -> None:
    for n in (4, 64, 17, 5):
        x = torch.randn(2, n, W)
        got, want = compiled(x), module(x)
        for a, b in zip(got if isinstance(got, tuple) else [got], want if isinstance(want, tuple) else [want], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


# What is computed of each product and attention, in order
NARROWED: dict[str, tuple[Callable[[Model, Tensor], Any], list[str]]] = {
    "the first row": (lambda m, x: m.b(m.norm(m.a(x)))[:, 0], ["2x1x16", "2x1x16"]),
    "the last row": (lambda m, x: m.b(m.norm(m.a(x)))[:, -1:], ["2x1x16", "2x1x16"]),
    "one of the batch": (lambda m, x: m.b(m.a(x))[1], ["1x?x16", "1x?x16"]),
    "rows by a size": (lambda m, x: m.a(x)[:, x.shape[1] // 2 :], ["2x?x16"]),
    "two rows of one product": (lambda m, x: (lambda y: (y[:, 0], y[:, 2].exp()))(m.a(x)), ["2x3x16"]),
    "a slice of a slice": (lambda m, x: m.b(m.a(x)[:, 1:])[:, 0], ["2x1x16", "2x1x16"]),
    "attention": (lambda m, x: m.attend(x)[:, 0], ["2x1x16", "2x2x1x8"]),
    "causal, the last row": (lambda m, x: m.b(m.attend(x, is_causal=True))[:, -1], ["2x1x16", "2x2x1x8", "2x1x16"]),
    "causal, the second row": (lambda m, x: m.attend(x, is_causal=True)[:, 1], ["2x1x16", "2x2x1x8"]),
    "causal, all but one": (lambda m, x: m.attend(x, is_causal=True)[:, 1:], ["2x?x16", "2x2x?x8"]),
    "a mask": (lambda m, x: m.attend(x, attn_mask=band(x))[:, -1:], ["2x1x16", "2x2x1x8"]),
    "through joins, padding and reversal": (
        lambda m, x: F.pad(torch.cat((m.a(x), m.b(x).flip(2)), -1), (1, 1))[:, -2:],
        ["2x2x16", "2x2x16"],
    ),
    "positions": (lambda m, x: (m.a(x) * torch.arange(x.shape[1])[:, None])[:, -1], ["2x1x16"]),
    "a batched product": (lambda m, x: (m.a(x) @ x.transpose(1, 2))[:, :1, 1:], ["2x1x16", "2x1x?"]),
    "steps in one dim": (lambda m, x: m.a(x)[:, :2, ::2], ["2x2x16"]),
}
WHOLE: dict[str, tuple[Callable[[Model, Tensor], Any], list[str]]] = {
    "also read elsewhere": (lambda m, x: (lambda y: (y[:, 0], y.sum((1, 2))))(m.a(x)), ["2x?x16"]),
    "columns of a weight": (lambda m, x: m.a(x)[..., :3], ["2x?x16"]),
    "every second row": (lambda m, x: m.a(x)[:, ::2], ["2x?x16"]),
    "rows that a join shuffles": (lambda m, x: m.a(x).reshape(-1, 2 * W)[:1], ["2x?x16"]),
    "a running sum": (lambda m, x: m.a(x).cumsum(1)[:, -1], ["2x?x16"]),
}


@pytest.mark.parametrize("case", NARROWED)
def test_only_what_is_read_is_computed(case: str) -> None:
    f, shapes = NARROWED[case]
    module, compiled, made = lowered(f)
    assert made == shapes
    check(module, compiled)


@pytest.mark.parametrize("case", WHOLE)
def test_what_cannot_be_narrowed_stays(case: str) -> None:
    f, shapes = WHOLE[case]
    module, compiled, made = lowered(f)
    assert made == shapes
    check(module, compiled)


def test_sizes_that_data_decides_do_not_move_before_they_are_known() -> None:
    class Until(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(W, W)

        def forward(self, x: Tensor, n: Tensor) -> Tensor:
            y = self.a(x)
            k = n.item()
            torch._check(k >= 0)
            torch._check(k <= x.shape[0])
            return y[:k]

    module = Until().eval()
    program = torch.export.export(module, (torch.randn(5, W), torch.tensor(3)), dynamic_shapes=({0: S}, None))
    compiled = dhlo.compile(program)
    for rows, n in ((5, 3), (4, 0), (64, 64), (7, 1)):
        x = torch.randn(rows, W)
        torch.testing.assert_close(compiled(x, torch.tensor(n)), module(x, torch.tensor(n)), rtol=1e-5, atol=1e-5)


def test_nan_of_rows_that_are_not_read_stays_away() -> None:
    module, compiled, _ = lowered(NARROWED["the last row"][0])
    x = torch.randn(2, 6, W)
    x[:, 2] = float("nan")
    got = compiled(x)
    assert not got.isnan().any()
    torch.testing.assert_close(got, module(x), rtol=1e-5, atol=1e-5)
