"""Sizes that are equal, but written otherwise: (2 r) // b for 2, min(n, m) for n where a guard says n <= m."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import sympy
import torch
import torch.nn.functional as F
from torch import Tensor, randn
from torch.export import Dim, export

import dhlo
from dhlo.errors import CompileError, ContractError
from dhlo.frontend.dims import Dims
from dhlo.ir.symbols import FloorDiv, symbol
from tests.frontend.test_counted_sizes import Calls

A: Any = Dim.AUTO


def rows(x: Tensor, y: Tensor) -> Tensor:
    """y [batch * 2, ...] as [batch, 2, ...]."""
    return y.view(x.shape[0], -1, *y.shape[1:])


def last_of_attention(x: Tensor, mask: Tensor) -> Tensor:
    b = x.shape[0]
    q = x.view(b, -1, 2, 4).transpose(1, 2)
    mask = mask.repeat_interleave(2, dim=0).view(b, 2, -1, 11)
    return F.scaled_dot_product_attention(q, q, q, attn_mask=mask).transpose(1, 2).reshape(b, -1, 8)[:, -1]


def first_columns(x: Tensor, mask: Tensor) -> Tensor:
    n = x.shape[1]
    return x @ x.transpose(1, 2) + mask[:, :n].view(x.shape[0], -1, n)


Make = Callable[[int], tuple[Tensor, ...]]
CASES: dict[str, tuple[Callable[..., Tensor], Make, Any]] = {
    "attention": (last_of_attention, lambda b: (randn(b, 11, 8), randn(b, 11, 11)), ({0: A}, {0: A})),
    "product": (lambda x, y: x @ rows(x, y), lambda b: (randn(b, 2, b + 2, 4), randn(2 * b, 4, 7)), ({0: A, 2: A}, {0: A})),
    "a part of a product": (
        lambda x, y: (x @ rows(x, y))[:, -1],
        lambda b: (randn(b, 2, b + 2, 4), randn(2 * b, 4, 7)),
        ({0: A, 2: A}, {0: A}),
    ),
    "a part of a softmax": (
        lambda x, y: torch.softmax(x + rows(x, y), -1)[:, -1],
        lambda b: (randn(b, 4, b + 1), randn(4 * b, b + 1)),
        ({0: A, 2: A}, {0: A, 1: A}),
    ),
    "a mask that is longer": (first_columns, lambda b: (randn(2, b, 4), randn(2, b + 2)), ({0: A, 1: A}, {0: A, 1: A})),
}


@pytest.mark.parametrize("name", CASES)
def test_values(name: str) -> None:
    fn, make, dims = CASES[name]
    compiled = dhlo.compile(export(Calls(fn), make(3), dynamic_shapes=(dims,)))
    for b in (3, 5, 2, 17):
        args = make(b)
        torch.testing.assert_close(compiled(*args), fn(*args), rtol=1e-5, atol=1e-6)


def test_a_shorter_mask_is_refused() -> None:
    fn, make, dims = CASES["a mask that is longer"]
    compiled = dhlo.compile(export(Calls(fn), make(3), dynamic_shapes=(dims,)))
    with pytest.raises(dhlo.ContractError, match="'x' dim 1|'args_0' dim 1"):
        compiled(randn(2, 5, 4), randn(2, 4))


def test_conditions_make_others_shorter() -> None:
    dims, (a, b) = Dims(), (symbol("s0"), symbol("s1"))
    half = FloorDiv(a, b)
    dims.shorten(sympy.Eq(b, FloorDiv(a, half), evaluate=False))
    dims.shorten(sympy.Eq(6 * a, 6 * b * half, evaluate=False))
    assert dims.size(FloorDiv(4 * b * half, FloorDiv(a, half))) == 4 * half
    assert dims.shortened(sympy.Eq(FloorDiv(b * half, b), 7, evaluate=False)) == sympy.Eq(half, 7, evaluate=False)
    dims.shorten(sympy.Eq(2 * a * FloorDiv(b, 3), 3 * b + 1, evaluate=False))  # of which a half has no whole terms
    assert dims.size(a * FloorDiv(b, 3)) == a * FloorDiv(b, 3)
    unknown = FloorDiv(symbol("u0"), b)
    dims.shorten(sympy.Eq(unknown, a, evaluate=False))  # isn't known where arguments are checked
    assert dims.size(unknown) == unknown


def test_einsum_of_two_types() -> None:
    outer = Calls(lambda x: torch.einsum("...n,d->...nd", x, torch.arange(3, dtype=torch.float64)))
    compiled = dhlo.compile(export(outer, (randn(2, 5),), dynamic_shapes=(({0: A, 1: A},),)))
    for shape in ((2, 5), (4, 1), (3, 0)):
        x = randn(shape)
        torch.testing.assert_close(compiled(x), outer(x), rtol=0, atol=0)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: F.interpolate(x, scale_factor=1 / 3),
        lambda x: F.interpolate(x, scale_factor=2 / 3, mode="bilinear"),
        lambda x: x[:, :, : math.floor(x.shape[2] * (1 / 3))] + 1,
        lambda x: F.pad(x, (0, 0, 0, math.ceil(x.shape[2] * (4 / 3)))),
        lambda x: x.double() * (x.shape[2] * (1 / 3)),
    ],
    ids=["nearest", "bilinear", "floor", "ceil", "value"],
)
def test_factors_of_sizes_have_all_their_digits(f: Callable[[Tensor], Tensor]) -> None:
    """0.333333333333333 of 9 are 2, a third of it is 3."""

    class Scaled(torch.nn.Module):
        def forward(self, x):
            return f(x)

    module = Scaled()
    model = dhlo.compile(export(module, (randn(1, 2, 12, 10),), dynamic_shapes=({2: A, 3: A},)))
    for n in (12, 9, 27, 30, 31, 6, 300, 57):
        x = randn(1, 2, n, 9)
        torch.testing.assert_close(model(x), module(x), rtol=1e-5, atol=1e-5)


def test_guards_have_all_their_digits() -> None:
    class Resampled(torch.nn.Module):
        def forward(self, x):
            return x[: int(torch.ceil(torch.as_tensor(160 * x.shape[0] / 441)).long())] * 2  # which the trace takes for a number

    x = randn(1600)
    model = dhlo.compile(export(Resampled(), (x,), dynamic_shapes=({0: A},)))
    assert torch.equal(model(x), 2 * x[:581])


NUMBERS: dict[str, Callable[[Tensor, int, int], Tensor]] = {
    "bits": lambda x, n, m: x * (n & 12) + (n | 9) + (n & m | 5) + (-n & 7),
    "whole bits": lambda x, n, m: torch.arange(3) // (n & 6 | 1) + (m | n) + torch.full((3,), n & 6),
    "bits of sizes": lambda x, n, m: x[: n & 12] + 1,
    "truths": lambda x, n, m: x * 2 if (n > 3) & (m > 2) | (n == 5) else x,
    "remainders": lambda x, n, m: x.double() * ((n * 1.25) % 3) + (n * 0.1) % 0.5,
    "remainders of sizes": lambda x, n, m: x[: math.floor((n * 1.5) % 7)] + 1,
    "lerp": lambda x, n, m: torch.lerp(x, x * 2, n * 0.01),
}


class Numbers(torch.nn.Module):
    def __init__(self, f: Callable[..., Tensor]) -> None:
        super().__init__()
        self.f = f

    def forward(self, x, y):
        return self.f(x, x.shape[0], y.shape[0])


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_made_of_sizes(name: str) -> None:
    program = export(Numbers(NUMBERS[name]), (randn(30), randn(17)), dynamic_shapes=({0: A}, {0: A}))
    model, theirs, refused = dhlo.compile(program), program.module(), 0
    for n, m in ((30, 17), (49, 3), (9, 60), (51, 18), (14, 6), (127, 128), (31, 30)):
        args = (randn(n), randn(m))
        try:
            want = theirs(*args)
        except AssertionError:  # a condition of the trace
            refused += 1
            with pytest.raises(ContractError):
                model(*args)
        else:
            torch.testing.assert_close(model(*args), want, rtol=1e-6 if want.is_floating_point() else 0, atol=1e-6)
    assert refused < 4


@pytest.mark.parametrize(
    ("f", "what"),
    [
        (lambda x, n, m: x * round(n * 0.37, 1), "a size is rounded to decimal places"),
        (lambda x, n, m: x * (n % 0.3), "the remainder of a size by 0.3"),
        (lambda x, n, m: x * (n % (m * 0.5 + 1)), "the remainder of a size by"),
    ],
)
def test_numbers_that_no_host_computes_are_refused(f: Any, what: str) -> None:
    with pytest.raises(CompileError, match=rf"{what}(?s:.*)of tensors(?s:.*)test_sizes_as_written"):
        dhlo.compile(export(Numbers(f), (randn(30), randn(17)), dynamic_shapes=({0: A}, {0: A})))


class Tokens(torch.nn.Module):
    """Attention over tokens of an image, whose height and width are numbers, to keys of a convolution; writes its tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.fewer, self.near = torch.nn.Conv2d(8, 8, 2, 2), torch.nn.Conv2d(8, 8, 3, padding=1, groups=8)

    def forward(self, x: Tensor, h: int, w: int) -> Tensor:
        batch, count, width = x.shape
        torch._check(h * w == count)
        x.mul_(0.5)
        keys = self.fewer(x.transpose(1, 2).reshape(batch, width, h, w)).flatten(2).transpose(1, 2)
        y = F.scaled_dot_product_attention(x, keys, keys)
        return y + self.near(y.transpose(1, 2).view(batch, width, h, w)).flatten(2).transpose(1, 2)


def test_sizes_that_numbers_say() -> None:
    module, auto = Tokens().eval().requires_grad_(False), Dim.DYNAMIC
    model = dhlo.compile(export(module, (randn(2, 48, 8), 6, 8), dynamic_shapes=({0: auto, 1: auto}, auto, auto)))
    for batch, h, w in ((2, 6, 8), (1, 4, 4), (3, 7, 9), (2, 16, 5), (1, 8, 31), (17, 4, 5)):
        x = randn(batch, h * w, 8)
        mine = x.clone()
        torch.testing.assert_close(model(mine, h, w), module(x, h, w), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(mine, x, rtol=0, atol=0)
    for h, w in ((6, 7), (48, 2), (4, 13)):
        with pytest.raises(ContractError, match=r"requires size_0 == .*, where size_0 = 'x' dim 1"):
            model(randn(2, 48, 8), h, w)
    with pytest.raises(MemoryError):
        model(randn(2, 48, 8), 2**32, 2**32)
    assert model(randn(2, 48, 8), 6, 8).shape == (2, 48, 8)
