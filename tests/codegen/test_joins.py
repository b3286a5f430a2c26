"""Tensors joined along the dim that vectors run along: a loop for each part, or all parts under masks."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.export import Dim, export

import dhlo
from dhlo.errors import ContractError

A: Any = Dim.AUTO
WIDTHS = (1, 2, 7, 8, 15, 16, 17, 32, 33, 64, 1023, 1025)


class Fn(torch.nn.Module):
    def __init__(self, f: Callable[..., Any]) -> None:
        super().__init__()
        self.f = f

    def forward(self, *xs):
        return self.f(*xs)


def tensors(rows: int, widths: Sequence[int], dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    return tuple((100 * torch.randn(rows, w)).to(dtype) for w in widths)


FORMS: dict[str, Callable[..., Any]] = {
    "plain": lambda *xs: torch.cat(xs, 1),
    "around": lambda *xs: torch.cat([x * 2 + k for k, x in enumerate(xs)], 1).abs() + 1,
    "nested": lambda *xs: torch.cat([torch.cat([xs[0], xs[1] + 1], 1), xs[1], torch.cat(xs[2:], 1)], 1),
    "rows too": lambda *xs: torch.cat([torch.cat(xs, 1), torch.cat(xs[::-1], 1).flip(0)], 0),
    "part of it": lambda *xs: torch.cat(xs, 1)[:, 3:-2] * 2,
    "twice": lambda *xs: (torch.cat(xs, 1) + torch.cat(xs[::-1], 1), torch.cat(xs, 1).sum(1)),
    "broadcast": lambda *xs: torch.cat(xs, 1)[:, None] + torch.cat(xs, 1)[None],
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, dtype) for name in FORMS for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.uint8)),
        *((name, torch.bool) for name in ("plain", "rows too")),
    ],
    ids=str,
)
def test_widths_of_the_call(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    rng, module = random.Random(0), Fn(FORMS[name])
    model = dhlo.compile(export(module, (tensors(3, (9, 10, 11, 12, 13), dtype)), dynamic_shapes=(({0: A, 1: A},) * 5,)))
    for rows in (1, 2, 3, 5, 5, 5):
        args = tensors(rows, [rng.choice((0, *WIDTHS)) for _ in range(4)] + [6], dtype)
        torch.testing.assert_close(model(*args), module(*args), rtol=1e-5 if dtype.is_floating_point else 0, atol=1e-3)


@pytest.mark.parametrize(
    "widths", [(1,) * 5, (16,) * 3, (32, 1, 32), (7, 0, 30), (33,) * 12, (1000, 48, 1), (2048, 16, 3)], ids=str
)
def test_static_widths(widths: tuple[int, ...]) -> None:
    module = Fn(FORMS["around"])
    model = dhlo.compile(export(module, tensors(3, widths), dynamic_shapes=(({0: A},) * len(widths),)))
    for rows in (3, 1, 0, 20):
        args = tensors(rows, widths)
        torch.testing.assert_close(model(*args), module(*args))


def test_tables_side_by_side() -> None:
    """Positions out of range are found in each of them."""
    tables = torch.nn.ParameterList([torch.randn(9, w) for w in (4, 32, 5, 16, 31)])

    class Tables(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables = tables

        def forward(self, at):
            return torch.cat([torch.nn.functional.embedding(at[:, k], t) for k, t in enumerate(self.tables)], 1)

    at, module = torch.randint(0, 9, (6, 5)), Tables()
    model = dhlo.compile(export(module, (at,), dynamic_shapes=({0: A},)))
    for rows in (6, 1, 3):
        with torch.no_grad():
            assert torch.equal(model(at[:rows]), module(at[:rows]))
    for k in range(5):
        wrong = at.clone()
        wrong[3, k] = 9
        with pytest.raises(ContractError, match="index 9 is out of range for size 9"):
            model(wrong)
